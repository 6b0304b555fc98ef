"""References of the documentation: what a name in backticks leads to.

Docstrings write `name` for arguments as well as for functions: it is a link where the
site documents the name, and code where it does not. Types in signatures carry the
module that defines them: they lead to the public name that the site documents.
"""

from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PyXRefRole
from sphinx.environment import BuildEnvironment

import linkern.testing
import linkern.transformer
from linkern import approximation, cost, feature_maps, similarity

__all__ = ["setup"]

# Links of the pages as files, and what they lead to on the site.
PAGES = {
    "../README.md": "index.md",
    "../CHANGELOG.md": "changelog.md",
    "../CONTRIBUTING.md": "contributing.md",
    "reference.md#linkern.": "#linkern.",
}
# Modules that export what users import.
PUBLIC = (
    linkern,
    linkern.testing,
    linkern.transformer,
    approximation,
    cost,
    feature_maps,
    similarity,
)


class NameRole(PyXRefRole):
    """Role of a name that may be documented."""

    def process_link(
        self,
        env: BuildEnvironment,
        refnode: nodes.Element,
        has_explicit_title: bool,
        title: str,
        target: str,
    ) -> tuple[str, str]:
        """Mark the reference as one that may lead nowhere."""
        refnode["optional"] = True
        return super().process_link(env, refnode, has_explicit_title, title, target)


def public_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.Element
) -> nodes.Element | None:
    """Resolve a type of linkern by its public name; leave code where none is meant.

    A public type that the site does not document stays unresolved: that is an error.
    """
    if node.get("refdomain") != "py":
        return None
    module, _, name = node["reftarget"].rpartition(".")
    code = contnode if node.get("optional") else None
    if not module.startswith("linkern"):
        return code
    domain = env.domains.python_domain
    documented = [x for x in domain.objects if x.endswith(f".{name}")]
    if len(documented) == 1:
        return domain.resolve_xref(
            env, node["refdoc"], app.builder, "obj", documented[0], node, contnode
        )
    is_public = any(name in one.__all__ for one in PUBLIC)
    return code if is_public else contnode


def links_of_the_site(app: Sphinx, docname: str, text: list[str]) -> None:
    """Let a link to a file of the repository lead to the page that shows it."""
    del app, docname
    for link, page in PAGES.items():
        text[0] = text[0].replace(f"]({link}", f"]({page}")


def setup(app: Sphinx) -> dict[str, Any]:
    """Make the role the default one, and connect what resolves references."""
    app.add_role_to_domain("py", "name", NameRole())
    app.connect("source-read", links_of_the_site)
    app.connect("missing-reference", public_name)
    app.config.default_role = "py:name"
    return {"parallel_read_safe": True}
