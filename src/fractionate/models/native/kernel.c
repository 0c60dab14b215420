/* Decoding for Llama and Qwen2 models on one CPU core.
 *
 * A batch is a list of tokens, each with the cache slot of its row and its position there. Reading
 * a prompt is many tokens of one slot, a decoding step is one token of each slot, and both may be
 * mixed. No row is padded, and every sum runs in an order that depends on the row alone, so what is
 * computed for a row does not depend, to the last bit, on what else is in the batch.
 *
 * Weights are float32, or bfloat16 that are widened (exactly) as they are read; activations and
 * sums are float32. Matrices are packed into panels of PANEL output columns, [K][PANEL] each, so
 * that the innermost loop reads memory in order: TILE rows times one panel stay in registers.
 */

#include "vectors.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

enum { PANEL = 2 * LANES };
enum { PAGE = 64 };   /* positions in one page of the cache */
enum { CHUNK = 192 }; /* tokens that go through the layers together */

typedef struct {
    const void *weight; /* packed */
    const float *bias;  /* of whole panels, in their order; or null */
    int32_t outputs, inputs;
} Matrix;

typedef struct {
    const float *attention_norm, *mlp_norm;
    Matrix qkv, output, gate_up, down; /* gate_up: LANES of gate, then LANES of up, per panel */
} Layer;

typedef struct {
    const Layer *layers;
    const void *embedding; /* [vocabulary][hidden], as the module has it */
    const float *norm;
    const float *cos, *sin; /* [positions][head_dim / 2] */
    Matrix head;
    int32_t layer_count, hidden, heads, kv_heads, head_dim, inner, bfloat16;
    float epsilon;
} Model;

typedef struct {
    float *keys;          /* [layer][page][kv head][PAGE / LANES][head_dim][LANES] */
    float *values;        /* [layer][page][kv head][PAGE][head_dim rounded up to 16] */
    const int32_t *table; /* [slot][pages_per_slot] */
    int32_t pages, pages_per_slot;
} Cache;

/* Ask for large pages: what a step reads does not fit the translation buffers in small ones. */
void use_large_pages(void *memory, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    uintptr_t first = ((uintptr_t)memory + 4095) & ~(uintptr_t)4095, end = (uintptr_t)memory + (uintptr_t)bytes;
    if (end > first) (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

int32_t panel_width(void) { return PANEL; }
int32_t page_length(void) { return PAGE; }

/* ------------------------------------------------------------ products */

/* `rows` rows, interleaved as x[k * rows + row], times one panel. */
INLINE void tile_by_panel(int rows, int bfloat16, const float *x, const void *weight, int inputs, float *out) {
    lanes sums[TILE][2] = {};
    for (int k = 0; k < inputs; k++) {
        lanes left, right;
        if (bfloat16) {
            word_lanes both = *(const word_lanes *)((const uint16_t *)weight + (int64_t)k * PANEL);
            left = (lanes)(both << 16);
            right = (lanes)(both & 0xFFFF0000u);
        } else {
            left = *(const lanes *)((const float *)weight + (int64_t)k * PANEL);
            right = *(const lanes *)((const float *)weight + (int64_t)k * PANEL + LANES);
        }
        UNROLL
        for (int row = 0; row < rows; row++) {
            float value = x[row];
            sums[row][0] += left * value;
            sums[row][1] += right * value;
        }
        x += rows;
    }
    UNROLL
    for (int row = 0; row < rows; row++) {
        *(lanes *)(out + row * PANEL) = sums[row][0];
        *(lanes *)(out + row * PANEL + LANES) = sums[row][1];
    }
}

static void multiply(int rows, int bfloat16, const float *x, const void *weight, int inputs, float *out) {
#define CASE(n)                                                             \
    case n:                                                                 \
        if (bfloat16) tile_by_panel(n, 1, x, weight, inputs, out);          \
        else tile_by_panel(n, 0, x, weight, inputs, out);                   \
        break;
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4)
#if !defined(__x86_64__) || defined(__AVX__)
        CASE(5) CASE(6)
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
    }
#undef CASE
}

typedef enum { STORE, ADD, SWIGLU } Ending;

/* What becomes of the sums of one tile and panel: stored, added, or gate and up combined. */
static void end(Ending ending, const Matrix *matrix, int panel, int rows, float *sums, float *out, int64_t stride) {
    int first = panel * PANEL, count = matrix->outputs - first;
    if (count > PANEL) count = PANEL;
    if (matrix->bias)
        for (int row = 0; row < rows; row++)
            for (int i = 0; i < PANEL; i++) sums[row * PANEL + i] += matrix->bias[first + i];
    out += ending == SWIGLU ? panel * LANES : first;
    for (int row = 0; row < rows; row++, sums += PANEL, out += stride) {
        lanes *left = (lanes *)sums, *right = (lanes *)(sums + LANES);
        if (ending == SWIGLU) {
            *(lanes *)out = *left / (1.0f + exponential(-*left)) * *right;
        } else if (count == PANEL) {
            lanes *low = (lanes *)out, *high = low + 1;
            *low = ending == ADD ? *left + *low : *left + 0.0f;
            *high = ending == ADD ? *right + *high : *right + 0.0f;
        } else {
            for (int i = 0; i < count; i++) out[i] = ending == ADD ? out[i] + sums[i] : sums[i];
        }
    }
}

/* out = x times the matrix. `space` holds inputs * rows floats. */
static void product(
    Ending ending, const Matrix *matrix, int bfloat16, const float *x, int64_t x_stride, int rows, float *out,
    int64_t stride, float *space
) {
    int tiles = (rows + TILE - 1) / TILE, inputs = matrix->inputs;
    int panels = (matrix->outputs + PANEL - 1) / PANEL;
    float sums[TILE * PANEL];
    for (int tile = 0; tile < tiles; tile++) {
        int from = tile * rows / tiles, count = (tile + 1) * rows / tiles - from;
        float *packed = space + (int64_t)from * inputs;
        for (int row = 0; row < count; row++)
            for (int k = 0; k < inputs; k++) packed[k * count + row] = x[(from + row) * x_stride + k];
    }
    for (int panel = 0; panel < panels; panel++) {
        const char *weight = (const char *)matrix->weight + (int64_t)panel * inputs * PANEL * (bfloat16 ? 2 : 4);
        for (int tile = 0; tile < tiles; tile++) {
            int from = tile * rows / tiles, count = (tile + 1) * rows / tiles - from;
            multiply(count, bfloat16, space + (int64_t)from * inputs, weight, inputs, sums);
            end(ending, matrix, panel, count, sums, out + from * stride, stride);
        }
    }
}

/* Pack `outputs` rows of a module's [outputs][inputs] weight into panels, `lane` columns of each
 * from column `offset` on: gate and up share panels, everything else fills whole ones. */
void pack(const void *weight, void *packed, int32_t outputs, int32_t inputs, int32_t bfloat16, int32_t width, int32_t offset) {
    for (int first = 0; first < outputs; first += width) {
        int64_t panel = (int64_t)(first / width) * inputs * PANEL;
        int count = outputs - first < width ? outputs - first : width;
        for (int k = 0; k < inputs; k++)
            for (int i = 0; i < width; i++) {
                int column = offset + i;
                int64_t to = panel + (int64_t)k * PANEL, from = (int64_t)(first + i) * inputs + k;
                if (bfloat16)
                    ((uint16_t *)packed)[to + column % LANES * 2 + column / LANES] = i < count ? ((const uint16_t *)weight)[from] : 0;
                else
                    ((float *)packed)[to + column] = i < count ? ((const float *)weight)[from] : 0;
            }
    }
}

/* ------------------------------------------------------------ the parts of a layer */

static void rms_norm(const float *x, const float *weight, int size, float epsilon, float *out) {
    lanes squares = {};
    int i = 0;
    for (; i + LANES <= size; i += LANES) squares += *(const lanes *)(x + i) * *(const lanes *)(x + i);
    float sum = total(squares);
    for (; i < size; i++) sum += x[i] * x[i];
    float scale = 1.0f / sqrtf(sum / size + epsilon);
    for (i = 0; i < size; i++) out[i] = x[i] * scale * weight[i];
}

static void rotate(float *x, int size, const float *cos, const float *sin) {
    int half = size / 2;
    for (int i = 0; i < half; i++) {
        float low = x[i], high = x[i + half];
        x[i] = low * cos[i] - high * sin[i];
        x[i + half] = high * cos[i] + low * sin[i];
    }
}

typedef struct {
    float *keys, *values;  /* of one layer */
    const int32_t *pages;  /* of one slot */
    int64_t key_head, value_head, value_row; /* floats of one head in a page, of one value */
    int32_t kv_heads, head_dim;
} View;

static float *key_block(const View *view, int head, int position) {
    int64_t page = (int64_t)view->pages[position / PAGE] * view->kv_heads + head;
    return view->keys + page * view->key_head + position % PAGE / LANES * LANES * view->head_dim;
}

static float *value_of(const View *view, int head, int position) {
    int64_t page = (int64_t)view->pages[position / PAGE] * view->kv_heads + head;
    return view->values + page * view->value_head + position % PAGE * view->value_row;
}

static void remember(const View *view, int position, const float *keys, const float *values) {
    for (int head = 0; head < view->kv_heads; head++, keys += view->head_dim, values += view->head_dim) {
        float *block = key_block(view, head, position) + position % LANES;
        for (int i = 0; i < view->head_dim; i++) block[LANES * i] = keys[i];
        memcpy(value_of(view, head, position), values, view->head_dim * sizeof(float));
    }
}

/* What is read next: its first `count` positions are fetched while something else is computed. */
typedef struct { View view; int head, count; } Ahead;

INLINE void fetch(const float *memory, int floats) {
    for (int i = 0; i < floats; i += 16) __builtin_prefetch(memory + i);
}

/* One query of one head against the positions up to its own; `scores` has room for them all. */
static void attend(
    const View *view, int head, int position, const float *query, float *scores, float *out, const Ahead *ahead
) {
    int size = view->head_dim, count = position + 1;
    float scale = 1.0f / sqrtf(size);
    lanes best = {};
    best -= INFINITY;
    for (int from = 0; from < count; from += LANES) {
        const float *block = key_block(view, head, from);
        if (ahead && from < ahead->count) fetch(key_block(&ahead->view, ahead->head, from), LANES * size);
        lanes even = {}, odd = {};
        int i = 0;
        for (; i + 1 < size; i += 2) {
            even += *(const lanes *)(block + LANES * i) * query[i];
            odd += *(const lanes *)(block + LANES * i + LANES) * query[i + 1];
        }
        if (i < size) even += *(const lanes *)(block + LANES * i) * query[i];
        lanes score = (even + odd) * scale;
        for (int j = count - from; j < LANES; j++) score[j] = -INFINITY;
        *(lanes *)(scores + from) = score;
        best = larger(score, best);
    }
    float top = largest(best);
    lanes sums = {};
    for (int from = 0; from < count; from += LANES) {
        lanes weight = exponential(*(lanes *)(scores + from) - top);
        *(lanes *)(scores + from) = weight;
        sums += weight;
    }
    float share = 1.0f / total(sums);
    for (int column = 0; column < size; column += LANES) {
        lanes parts[4] = {};
        for (int from = 0; from < count; from += PAGE) {
            const float *value = value_of(view, head, from) + column;
            int until = count - from < PAGE ? count - from : PAGE, i = 0;
            const float *next = ahead && column == 0 && from < ahead->count ? value_of(&ahead->view, ahead->head, from) : 0;
            for (; i + 4 <= until; i += 4) {
                if (next) fetch(next + i * view->value_row, 4 * view->value_row);
                UNROLL
                for (int j = 0; j < 4; j++)
                    parts[j] += *(const lanes *)(value + (i + j) * view->value_row) * scores[from + i + j];
            }
            for (int j = 0; i + j < until; j++)
                parts[j] += *(const lanes *)(value + (i + j) * view->value_row) * scores[from + i + j];
        }
        lanes result = ((parts[0] + parts[1]) + (parts[2] + parts[3])) * share;
        int width = size - column < LANES ? size - column : LANES;
        memcpy(out + column, &result, width * sizeof(float));
    }
}

/* ------------------------------------------------------------ the model */

static int64_t widest(const Model *model) {
    int64_t heads = (int64_t)model->heads * model->head_dim, size = model->hidden > model->inner ? model->hidden : model->inner;
    return heads > size ? heads : size;
}

static int64_t qkv_width(const Model *model) { return (int64_t)(model->heads + 2 * model->kv_heads) * model->head_dim; }

/* Floats that `forward` needs as working space, for rows of at most `length` positions. */
int64_t space_needed(const Model *model, int64_t length) {
    int64_t inner = up_to(model->inner, LANES);
    return CHUNK * (2 * (int64_t)model->hidden + qkv_width(model) + inner + 2 * widest(model) + LANES) + up_to(length, LANES);
}

static void attention(
    const Model *model, const Cache *cache, int index, int count, const int32_t *slots, const int32_t *positions,
    float *qkv, float *scores, float *out
) {
    int size = model->head_dim, heads = model->heads, kv_heads = model->kv_heads;
    int64_t row = qkv_width(model), key_head = (int64_t)PAGE * size, value_head = PAGE * up_to(size, 16);
    View view = {
        cache->keys + index * (int64_t)cache->pages * kv_heads * key_head,
        cache->values + index * (int64_t)cache->pages * kv_heads * value_head,
        0, key_head, value_head, up_to(size, 16), kv_heads, size,
    };
    for (int token = 0; token < count; token++) {
        const float *cos = model->cos + (int64_t)positions[token] * (size / 2);
        const float *sin = model->sin + (int64_t)positions[token] * (size / 2);
        float *own = qkv + token * row;
        for (int head = 0; head < heads + kv_heads; head++) rotate(own + head * size, size, cos, sin);
        view.pages = cache->table + (int64_t)slots[token] * cache->pages_per_slot;
        remember(&view, positions[token], own + heads * size, own + (heads + kv_heads) * size);
    }
    for (int token = 0; token < count; token++) {
        view.pages = cache->table + (int64_t)slots[token] * cache->pages_per_slot;
        for (int head = 0; head < heads; head++) {
            const float *query = qkv + token * row + head * size;
            float *result = out + (int64_t)token * heads * size + head * size;
            int group = heads / kv_heads, next = token + (head / group + 1 == kv_heads);
            Ahead ahead = {view, (head / group + 1) % kv_heads, 0};
            if (next < count) {
                ahead.view.pages = cache->table + (int64_t)slots[next] * cache->pages_per_slot;
                ahead.count = positions[next] + 1;
            }
            attend(&view, head / group, positions[token], query, scores, result, head % group ? 0 : &ahead);
        }
    }
}

static void embed(const Model *model, int64_t id, float *out) {
    const uint16_t *narrow = (const uint16_t *)model->embedding + id * model->hidden;
    if (!model->bfloat16) {
        memcpy(out, (const float *)model->embedding + id * model->hidden, model->hidden * sizeof(float));
        return;
    }
    for (int i = 0; i < model->hidden; i++) {
        uint32_t word = (uint32_t)narrow[i] << 16;
        memcpy(out + i, &word, sizeof word);
    }
}

/* Read tokens into their slots. Token i with wanted[i] >= 0 leaves its last hidden state, after the
 * final norm, in that row of `hidden`. A slot's tokens come in the order of their positions. */
void forward(
    const Model *model, const Cache *cache, int32_t tokens, const int64_t *ids, const int32_t *slots,
    const int32_t *positions, const int32_t *wanted, float *hidden, float *space
) {
    int size = model->hidden, narrow = model->bfloat16, attended = model->heads * model->head_dim;
    int64_t inner = up_to(model->inner, LANES);
    float *x = space, *normed = x + CHUNK * (int64_t)size, *qkv = normed + CHUNK * (int64_t)size;
    float *wide = qkv + CHUNK * qkv_width(model), *gated = wide + CHUNK * widest(model);
    float *packed = gated + CHUNK * inner, *scores = packed + CHUNK * (widest(model) + LANES);
    for (int from = 0; from < tokens; from += CHUNK) {
        int count = tokens - from < CHUNK ? tokens - from : CHUNK;
        for (int i = 0; i < count; i++) embed(model, ids[from + i], x + (int64_t)i * size);
        for (int index = 0; index < model->layer_count; index++) {
            const Layer *layer = model->layers + index;
            for (int i = 0; i < count; i++)
                rms_norm(x + (int64_t)i * size, layer->attention_norm, size, model->epsilon, normed + (int64_t)i * size);
            product(STORE, &layer->qkv, narrow, normed, size, count, qkv, qkv_width(model), packed);
            attention(model, cache, index, count, slots + from, positions + from, qkv, scores, wide);
            product(ADD, &layer->output, narrow, wide, attended, count, x, size, packed);
            for (int i = 0; i < count; i++)
                rms_norm(x + (int64_t)i * size, layer->mlp_norm, size, model->epsilon, normed + (int64_t)i * size);
            product(SWIGLU, &layer->gate_up, narrow, normed, size, count, gated, inner, packed);
            product(ADD, &layer->down, narrow, gated, inner, count, x, size, packed);
        }
        for (int i = 0; i < count; i++)
            if (wanted[from + i] >= 0)
                rms_norm(x + (int64_t)i * size, model->norm, size, model->epsilon, hidden + (int64_t)wanted[from + i] * size);
    }
}

/* Logits of some hidden states, [rows][outputs of the head]. */
void logits_of(const Model *model, int32_t rows, const float *hidden, float *logits, float *space) {
    for (int from = 0; from < rows; from += CHUNK) {
        int count = rows - from < CHUNK ? rows - from : CHUNK;
        int64_t vocabulary = model->head.outputs;
        product(STORE, &model->head, model->bfloat16, hidden + (int64_t)from * model->hidden, model->hidden, count,
                logits + from * vocabulary, vocabulary, space);
    }
}

/* Copy what a slot holds of `length` positions into pages of another slot. */
void copy_slot(const Model *model, const Cache *cache, int32_t from, int32_t to, int32_t length) {
    int64_t keys = (int64_t)model->kv_heads * PAGE * model->head_dim;
    int64_t values = (int64_t)model->kv_heads * PAGE * up_to(model->head_dim, 16);
    const int32_t *source = cache->table + (int64_t)from * cache->pages_per_slot;
    const int32_t *target = cache->table + (int64_t)to * cache->pages_per_slot;
    for (int64_t layer = 0; layer < model->layer_count; layer++)
        for (int page = 0; page * PAGE < length; page++) {
            int64_t base = layer * cache->pages;
            memcpy(cache->keys + (base + target[page]) * keys, cache->keys + (base + source[page]) * keys, keys * sizeof(float));
            memcpy(cache->values + (base + target[page]) * values, cache->values + (base + source[page]) * values, values * sizeof(float));
        }
}
