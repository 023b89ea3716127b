/* A corpus as an engine uses it: requests draft from it while other threads append their answers, a
 * file keeps it, and wrong calls get a status.
 *
 *     ./corpus [DEVICE] [FOLDER]
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <spec.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { LIMIT = 256, LEN = 8, DRAFTS = 4, WRITERS = 2, READERS = 2, TEXTS = 300 };

static spec_handle *device;
static int failures;

static void fail(int line, const char *what) {
    char words[512] = "";
    spec_last_error(words, sizeof words);
    fprintf(stderr, "line %d: %s: %s\n", line, what, words);
    failures++;
}

#define EXPECT(what) ((what) ? (void)0 : fail(__LINE__, #what))
#define OK(call) EXPECT((call) == SPEC_STATUS_SUCCESS)

static spec_tensor tensor(uint32_t dtype, uint32_t rank, int64_t rows, int64_t cols) {
    spec_tensor made = {0};
    made.dtype = dtype;
    made.rank = rank;
    made.shape[0] = rows;
    made.shape[1] = rank > 1 ? cols : 0;
    return made;
}

/* What a request needs for its calls. */
struct request {
    spec_memory *tokens, *lengths, *drafts, *counts, *workspace;
    spec_suffix_lookup_buffers buffers;
    size_t bytes;
    void *space, *stream;
};

static spec_memory *allocate(size_t bytes, void **address) {
    spec_memory *made = NULL;
    OK(spec_allocate(device, bytes, &made));
    OK(spec_memory_address(made, address));
    return made;
}

static spec_descriptor *create(size_t limit) {
    spec_suffix_lookup_params params = {0};
    params.size = sizeof params;
    OK(spec_suffix_lookup_defaults(&params));
    params.min_match = 2;
    spec_suffix_lookup_tensors tensors = {0};
    tensors.size = sizeof tensors;
    tensors.tokens = tensor(SPEC_DTYPE_I32, 2, 1, LEN);
    tensors.lengths = tensor(SPEC_DTYPE_I32, 1, 1, 0);
    tensors.corpus = tensor(SPEC_DTYPE_I32, 1, (int64_t)limit, 0);
    tensors.corpus_length = tensor(SPEC_DTYPE_I32, 1, 1, 0);
    tensors.drafts = tensor(SPEC_DTYPE_I32, 2, 1, DRAFTS);
    tensors.counts = tensor(SPEC_DTYPE_I32, 1, 1, 0);
    spec_descriptor *made = NULL;
    OK(spec_suffix_lookup_create(device, &params, &tensors, &made));
    return made;
}

static struct request open_request(const spec_descriptor *lookup, const spec_corpus *corpus) {
    struct request made;
    void *tokens, *lengths;
    memset(&made, 0, sizeof made);
    made.buffers.size = sizeof made.buffers;
    made.tokens = allocate(LEN * sizeof(int32_t), &tokens);
    made.lengths = allocate(sizeof(int32_t), &lengths);
    made.drafts = allocate(DRAFTS * sizeof(int32_t), (void **)&made.buffers.drafts);
    made.counts = allocate(sizeof(int32_t), (void **)&made.buffers.counts);
    made.buffers.tokens = tokens;
    made.buffers.lengths = lengths;
    OK(spec_workspace_size(lookup, &made.bytes));
    made.workspace = allocate(made.bytes > 0 ? made.bytes : 4, &made.space);
    OK(spec_handle_stream(device, &made.stream));
    OK(spec_corpus_pointers(corpus, &made.buffers.corpus, &made.buffers.corpus_length));
    return made;
}

static void close_request(struct request *request) {
    OK(spec_free(request->tokens));
    OK(spec_free(request->lengths));
    OK(spec_free(request->drafts));
    OK(spec_free(request->counts));
    OK(spec_free(request->workspace));
}

/* Drafts that follow the text in the corpus; how many. */
static int draft(const spec_descriptor *lookup, const spec_corpus *corpus,
                 struct request *request, const int32_t *text, int32_t length, int32_t *drafts) {
    int32_t count = 0;
    OK(spec_write(request->tokens, 0, text, (size_t)length * sizeof *text));
    OK(spec_write(request->lengths, 0, &length, sizeof length));
    OK(spec_corpus_lock(corpus));
    OK(spec_suffix_lookup_calculate(lookup, request->space, request->bytes, &request->buffers,
                                    request->stream));
    OK(spec_corpus_unlock(corpus));
    OK(spec_read(request->counts, 0, &count, sizeof count));
    OK(spec_read(request->drafts, 0, drafts, DRAFTS * sizeof *drafts));
    return (int)count;
}

static size_t size_of(const spec_corpus *corpus) {
    size_t count = 0, limit = 0;
    OK(spec_corpus_size(corpus, &count, &limit));
    EXPECT(limit == LIMIT || limit == 16);
    return count;
}

static void one_thread(const char *path) {
    const int32_t answer[] = {1, 2, 3, 4, 5}, other[] = {6, 7, 1, 2};
    const int32_t question[] = {9, 1, 2}, between[] = {5, 6};
    int32_t drafts[DRAFTS];
    spec_corpus *corpus = NULL, *loaded = NULL;
    OK(spec_corpus_create(device, SPEC_DTYPE_I32, 16, &corpus));
    spec_descriptor *lookup = create(16);
    struct request request = open_request(lookup, corpus);
    const void *tokens = NULL, *length = NULL;
    EXPECT(size_of(corpus) == 0);
    EXPECT(draft(lookup, corpus, &request, question, 3, drafts) == 0);
    OK(spec_corpus_append(corpus, answer, 5));
    EXPECT(draft(lookup, corpus, &request, question, 3, drafts) == 3);
    EXPECT(drafts[0] == 3 && drafts[1] == 4 && drafts[2] == 5);
    /* No match reaches from one text into the next. */
    OK(spec_corpus_append(corpus, other, 4));
    EXPECT(draft(lookup, corpus, &request, between, 2, drafts) == 0);
    EXPECT(size_of(corpus) == 11);
    /* Where the limit is reached, the oldest texts go; the memory stays where it is. */
    OK(spec_corpus_append(corpus, answer, 5));
    EXPECT(size_of(corpus) == 11);
    EXPECT(draft(lookup, corpus, &request, question, 3, drafts) == 3);
    OK(spec_corpus_pointers(corpus, &tokens, &length));
    EXPECT(tokens == request.buffers.corpus && length == request.buffers.corpus_length);
    /* Through a file. */
    OK(spec_corpus_save(corpus, path));
    OK(spec_corpus_clear(corpus));
    EXPECT(size_of(corpus) == 0);
    EXPECT(draft(lookup, corpus, &request, question, 3, drafts) == 0);
    OK(spec_corpus_load(device, SPEC_DTYPE_I32, path, 16, &loaded));
    EXPECT(size_of(loaded) == 11);
    OK(spec_corpus_pointers(loaded, &request.buffers.corpus, &request.buffers.corpus_length));
    EXPECT(draft(lookup, loaded, &request, question, 3, drafts) == 3);
    close_request(&request);
    OK(spec_destroy(lookup));
    OK(spec_corpus_destroy(corpus));
    OK(spec_corpus_destroy(loaded));
    EXPECT(spec_corpus_destroy(loaded) == SPEC_STATUS_BAD_PARAM);
}

static int says(const char *words) {
    char said[512] = "";
    spec_last_error(said, sizeof said);
    return strstr(said, words) != NULL;
}

/* A pipe is neither replaced nor read; reading it would wait for a writer for ever. */
static void other_files(const spec_corpus *corpus, const char *path) {
    char pipe[512];
    struct stat there;
    spec_corpus *loaded = NULL;
    snprintf(pipe, sizeof pipe, "%s.pipe", path);
    EXPECT(mkfifo(pipe, 0600) == 0);
    EXPECT(spec_corpus_save(corpus, pipe) == SPEC_STATUS_INTERNAL_ERROR);
    EXPECT(says("not a regular file"));
    EXPECT(spec_corpus_load(device, SPEC_DTYPE_I32, pipe, 16, &loaded) == SPEC_STATUS_BAD_PARAM);
    EXPECT(loaded == NULL && says("not a regular file"));
    EXPECT(lstat(pipe, &there) == 0 && S_ISFIFO(there.st_mode));
    EXPECT(remove(pipe) == 0);
}

static void wrong_calls(const char *path) {
    const int32_t text[] = {1, 2};
    const void *tokens = NULL;
    spec_corpus *corpus = (spec_corpus *)&tokens;
    EXPECT(spec_corpus_create(device, SPEC_DTYPE_F32, 16, &corpus) == SPEC_STATUS_BAD_TENSOR_DTYPE);
    EXPECT(corpus == NULL && says("SPEC_DTYPE_I32"));
    EXPECT(spec_corpus_create(device, SPEC_DTYPE_I32, 1, &corpus) == SPEC_STATUS_BAD_PARAM);
    EXPECT(says("limit"));
    EXPECT(spec_corpus_create(NULL, SPEC_DTYPE_I32, 16, &corpus) == SPEC_STATUS_NULL_POINTER);
    spec_handle *wgpu = NULL;
    if (spec_open("wgpu", &wgpu) == SPEC_STATUS_SUCCESS) {
        EXPECT(spec_corpus_create(wgpu, SPEC_DTYPE_I32, 16, &corpus) == SPEC_STATUS_NOT_IMPLEMENTED);
        OK(spec_close(wgpu));
    }
    EXPECT(spec_corpus_create(device, SPEC_DTYPE_I32, 16, NULL) == SPEC_STATUS_NULL_POINTER);
    EXPECT(spec_corpus_load(device, SPEC_DTYPE_I32, "no/such/file", 16, &corpus) ==
           SPEC_STATUS_INTERNAL_ERROR);
    EXPECT(says("no/such/file"));
    EXPECT(spec_corpus_load(device, SPEC_DTYPE_I64, path, 16, &corpus) == SPEC_STATUS_BAD_PARAM);
    EXPECT(corpus == NULL && says("4 bytes"));
    EXPECT(spec_corpus_load(device, SPEC_DTYPE_I32, NULL, 16, &corpus) == SPEC_STATUS_NULL_POINTER);
    OK(spec_corpus_create(device, SPEC_DTYPE_I64, 16, &corpus));
    EXPECT(spec_corpus_append(corpus, NULL, 2) == SPEC_STATUS_NULL_POINTER);
    EXPECT(spec_corpus_append(corpus, (const char *)text + 1, 1) == SPEC_STATUS_BAD_PARAM);
    OK(spec_corpus_append(corpus, NULL, 0));
    EXPECT(size_of(corpus) == 0);
    EXPECT(spec_corpus_pointers(corpus, &tokens, NULL) == SPEC_STATUS_NULL_POINTER);
    OK(spec_corpus_size(corpus, NULL, NULL));
    EXPECT(spec_corpus_save(corpus, "no/such/folder/file") == SPEC_STATUS_INTERNAL_ERROR);
    other_files(corpus, path);
    EXPECT(spec_corpus_unlock(corpus) == SPEC_STATUS_BAD_PARAM);
    EXPECT(says("not locked"));
    OK(spec_corpus_lock(corpus));
    EXPECT(spec_corpus_destroy(corpus) == SPEC_STATUS_BAD_PARAM);
    EXPECT(says("locked"));
    OK(spec_corpus_unlock(corpus));
    OK(spec_corpus_destroy(corpus));
    EXPECT(spec_corpus_append(corpus, text, 1) == SPEC_STATUS_BAD_PARAM);
    EXPECT(spec_corpus_lock(NULL) == SPEC_STATUS_NULL_POINTER);
}

static spec_corpus *shared;
static spec_descriptor *lookups;

/* Appends texts of seven neighbouring numbers, which begin with a multiple of 7. */
static void *write_texts(void *number) {
    int32_t text[7];
    int wrong = 0;
    for (int one = 0; one < TEXTS; one++) {
        const int32_t first = 7 * (TEXTS * (int32_t)(intptr_t)number + one);
        for (int i = 0; i < 7; i++) {
            text[i] = first + i;
        }
        wrong += spec_corpus_append(shared, text, 7) != SPEC_STATUS_SUCCESS;
        if (one % 50 == 0) {
            /* The lock is held by nobody for ever, so that the writers come through. */
            wrong += spec_corpus_lock(shared) != SPEC_STATUS_SUCCESS;
            wrong += spec_corpus_unlock(shared) != SPEC_STATUS_SUCCESS;
        }
    }
    return (void *)(intptr_t)wrong;
}

/* Every draft is the number behind, of the same text: a call never sees half of a change. */
static void *read_texts(void *request) {
    intptr_t wrong = 0;
    int32_t drafts[DRAFTS];
    for (int32_t one = 0; one < WRITERS * TEXTS; one++) {
        const int32_t text[] = {7 * one, 7 * one + 1};
        const int count = draft(lookups, shared, request, text, 2, drafts);
        wrong += count != 0 && count != DRAFTS;
        for (int i = 0; i < count; i++) {
            wrong += drafts[i] != 7 * one + 2 + i;
        }
    }
    return (void *)wrong;
}

static void *append_one(void *unused) {
    const int32_t text[] = {1, 2, 3};
    (void)unused;
    return (void *)(intptr_t)(spec_corpus_append(shared, text, 3) != SPEC_STATUS_SUCCESS);
}

/* While a thread holds the lock, nothing changes; two threads may hold it. */
static void appending_waits(void) {
    const struct timespec moment = {0, 200 * 1000 * 1000};
    pthread_t writer;
    void *wrong = NULL;
    OK(spec_corpus_create(device, SPEC_DTYPE_I32, 16, &shared));
    OK(spec_corpus_lock(shared));
    OK(spec_corpus_lock(shared));
    EXPECT(pthread_create(&writer, NULL, append_one, NULL) == 0);
    nanosleep(&moment, NULL);
    EXPECT(size_of(shared) == 0);
    OK(spec_corpus_unlock(shared));
    nanosleep(&moment, NULL);
    EXPECT(size_of(shared) == 0);
    OK(spec_corpus_unlock(shared));
    pthread_join(writer, &wrong);
    EXPECT(wrong == NULL && size_of(shared) == 4);
    OK(spec_corpus_destroy(shared));
}

static void many_threads(void) {
    pthread_t writers[WRITERS], readers[READERS];
    struct request requests[READERS];
    void *wrong = NULL;
    OK(spec_corpus_create(device, SPEC_DTYPE_I32, LIMIT, &shared));
    lookups = create(LIMIT);
    for (int i = 0; i < READERS; i++) {
        requests[i] = open_request(lookups, shared);
    }
    for (intptr_t i = 0; i < WRITERS; i++) {
        EXPECT(pthread_create(&writers[i], NULL, write_texts, (void *)i) == 0);
    }
    for (int i = 0; i < READERS; i++) {
        EXPECT(pthread_create(&readers[i], NULL, read_texts, &requests[i]) == 0);
    }
    for (int i = 0; i < WRITERS + READERS; i++) {
        pthread_join(i < WRITERS ? writers[i] : readers[i - WRITERS], &wrong);
        EXPECT(wrong == NULL);
    }
    /* What was appended last is there, and the limit was kept. */
    int32_t drafts[DRAFTS];
    const int32_t last[] = {7 * (TEXTS - 1), 7 * (TEXTS - 1) + 1};
    EXPECT(size_of(shared) <= LIMIT && size_of(shared) % 8 == 0);
    const int one = draft(lookups, shared, &requests[0], last, 2, drafts);
    const int32_t other[] = {7 * (2 * TEXTS - 1), 7 * (2 * TEXTS - 1) + 1};
    EXPECT(one + draft(lookups, shared, &requests[0], other, 2, drafts) >= DRAFTS);
    for (int i = 0; i < READERS; i++) {
        close_request(&requests[i]);
    }
    OK(spec_destroy(lookups));
    OK(spec_corpus_destroy(shared));
}

int main(int count, char **words) {
    char path[512];
    if (spec_open(count > 1 ? words[1] : "cpu", &device) != SPEC_STATUS_SUCCESS) {
        return EXIT_FAILURE;
    }
    snprintf(path, sizeof path, "%s/corpus.bin", count > 2 ? words[2] : "/tmp");
    one_thread(path);
    wrong_calls(path);
    appending_waits();
    many_threads();
    remove(path);
    OK(spec_close(device));
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
