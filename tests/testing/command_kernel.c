/* Causal linear attention with elu(x) + 1 as a program: float32, (batch, heads, time,
 * dim), one safetensors file in and one out. It carries no state.
 *
 * With -DLOSE_LAST_KEY the last row never sees its own key, if there is an earlier one.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    long shape[4];
    float *numbers;
} Tensor;

static void fail(const char *why, const char *what) {
    fprintf(stderr, "%s %s\n", why, what);
    exit(1);
}

static void *allocate(size_t bytes) {
    void *found = calloc(1, bytes ? bytes : 1);
    if (!found) fail("no memory for", "tensors");
    return found;
}

static char *contents(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) fail("cannot open", path);
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    char *all = allocate(length + 1);
    if (fread(all, 1, length, file) != (size_t)length) fail("cannot read", path);
    fclose(file);
    return all;
}

/* A file is the length of a JSON header in 8 bytes, the header, and the numbers. */
static Tensor find(char *file, const char *name) {
    uint64_t length;
    memcpy(&length, file, 8);
    char *header = file + 8, quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":{", name);
    char *entry = strstr(header, quoted);
    if (!entry) fail("no tensor", name);
    if (strncmp(strstr(entry, "\"dtype\":"), "\"dtype\":\"F32\"", 13))
        fail("only float32 is supported, not that of", name);
    Tensor found;
    long start, *n = found.shape;
    if (sscanf(strstr(entry, "\"shape\":"), "\"shape\":[%ld,%ld,%ld,%ld]", n, n + 1,
               n + 2, n + 3) != 4)
        fail("four axes are needed in", name);
    sscanf(strstr(entry, "\"data_offsets\":"), "\"data_offsets\":[%ld,", &start);
    found.numbers = allocate(sizeof(float) * n[0] * n[1] * n[2] * n[3]);
    memcpy(found.numbers, header + length + start,
           sizeof(float) * n[0] * n[1] * n[2] * n[3]);
    return found;
}

static float feature(float x) { return x > 0 ? x + 1 : expf(x); }

/* One head: the recurrence, token by token. */
static void attend(const float *q, const float *k, const float *v, float *out, long T,
                   long K, long V) {
    float *memory = allocate(sizeof(float) * K * V);
    float *normalizer = allocate(sizeof(float) * K);
    for (long t = 0; t < T; t++, q += K, k += K, v += V, out += V) {
#ifdef LOSE_LAST_KEY
        if (t == 0 || t < T - 1)
#endif
            for (long i = 0; i < K; i++) {
                normalizer[i] += feature(k[i]);
                for (long j = 0; j < V; j++) memory[i * V + j] += feature(k[i]) * v[j];
            }
        float weight = 0;
        for (long i = 0; i < K; i++) weight += feature(q[i]) * normalizer[i];
        for (long j = 0; j < V; j++) {
            float sum = 0;
            for (long i = 0; i < K; i++) sum += feature(q[i]) * memory[i * V + j];
            out[j] = sum / weight;
        }
    }
    free(memory);
    free(normalizer);
}

static void save(const char *path, const Tensor *output) {
    const long *n = output->shape, bytes = sizeof(float) * n[0] * n[1] * n[2] * n[3];
    char header[256];
    uint64_t length = snprintf(header, sizeof header,
                               "{\"output\":{\"dtype\":\"F32\",\"shape\":[%ld,%ld,%ld,"
                               "%ld],\"data_offsets\":[0,%ld]}}",
                               n[0], n[1], n[2], n[3], bytes);
    FILE *file = fopen(path, "wb");
    if (!file) fail("cannot open", path);
    fwrite(&length, 8, 1, file);
    fwrite(header, 1, length, file);
    fwrite(output->numbers, 1, bytes, file);
    if (fclose(file)) fail("cannot write", path);
}

int main(int count, char **words) {
    if (count != 3) fail("usage:", "command_kernel INPUTS OUTPUTS");
    char *file = contents(words[1]);
    Tensor query = find(file, "query"), key = find(file, "key");
    Tensor value = find(file, "value"), output = value;
    const long heads = query.shape[0] * query.shape[1], T = query.shape[2];
    const long K = query.shape[3], V = value.shape[3];
    output.numbers = allocate(sizeof(float) * heads * T * V);
    for (long h = 0; h < heads; h++)
        attend(query.numbers + h * T * K, key.numbers + h * T * K,
               value.numbers + h * T * V, output.numbers + h * T * V, T, K, V);
    save(words[2], &output);
    return 0;
}
