"""Write the cheat sheet of declarations, `docs/declarations.md`.

python tools/declarations_page.py            # write the page
python tools/declarations_page.py --check    # compare it with the code
"""

import inspect
import re
import sys
from dataclasses import fields
from pathlib import Path

from pages import write_or_compare

from linkern.testing import Contract
from linkern.testing.spec.declarations import TOPICS, as_text

PAGE = Path(__file__).parents[1] / "docs" / "declarations.md"

HEAD = """\
# Declarations

<!-- Written by tools/declarations_page.py; do not edit. -->

A declaration tells the referee what a kernel promises. Undeclared means strictest:
arrays `(B, H, T, D)`, sums in float32 or wider, no epsilon, any length, any dimension,
any strides. Each declaration relaxes or changes a law, and is printed beside the
verdict, so it cannot hide a defect. Declare what the kernel documents, not what makes a
check pass.

```console
linkern verify my_kernels.py:gla --op gla --framework torch \\
    --declare layout=bthd --declare length_multiple_of=64
linkern list declarations
```

The same keys go into a file, for `--contract my_kernel.toml`; `--declare` comes on top
of it:

```toml
layout = "bthd"
length_multiple_of = 64
key_dims = [64, 128]
state_dtype = "float32"
```

In Python the contract is a mapping; values may be text, numbers or lists:

```python
>>> from linkern.testing import Contract
>>> Contract.from_mapping({"layout": "bthd", "key_dims": [64, 128]}).declared()
{'layout': 'bthd', 'key_dims': (64, 128)}

```

Switches of a kernel, such as `use_qk_l2norm_in_kernel=True`, need no declaration: the
report notes what they say. See [published kernels](published-kernels.md).

`linkern fingerprint` measures precision, epsilon and chunk size of a kernel, and says
if a declaration contradicts them. Declarations that mean nothing for an operator are
refused: feature maps, normalizer and epsilon are for linear attention; decays, `l2norm`
and `value_groups` are for the other operators.
"""


def meanings() -> dict[str, str]:
    """Return the text of each parameter in the docstring of `Contract`."""
    _, _, text = (inspect.getdoc(Contract) or "").partition("Parameters\n----------\n")
    texts = {}
    for entry in re.split(r"\n(?=\w)", text):
        names, _, body = entry.partition("\n")
        meaning = " ".join(body.split()).replace("``", "`")
        texts |= dict.fromkeys(names.partition(" : ")[0].split(", "), meaning)
    return texts


def page() -> str:
    """Return the page."""
    texts = meanings()
    defaults = {field.name: field.default for field in fields(Contract)}
    lines = [HEAD]
    for topic, declarations in TOPICS.items():
        lines += [
            f"## {topic}\n",
            "| example | needed if | values (default first) | meaning |",
            "|---|---|---|---|",
        ]
        for key, one in declarations.items():
            values, default = one.values.text, defaults[key]
            if default not in (None, ()):
                first = as_text(default)
                others = [word for word in values.split() if word != first]
                words = first in values.split()
                values = " ".join([first, *others]) if words else f"{first}; {values}"
            cells = (f"`{key}={one.example}`", one.when, values, texts[key])
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(write_or_compare(PAGE, page, __doc__))
