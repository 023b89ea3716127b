/* spec.h: the operators that decide an LLM server's next tokens and experts.
 *
 * Written by `cargo xtask bindings` from the operators' contracts: do not edit.
 *
 * A caller creates an operator once, from parameters and descriptors of its tensors; this
 * checks everything. The caller asks how much workspace a call needs. A call then enqueues
 * the work on the caller's own memory and stream, and does nothing else: no allocation, no
 * copy, no wait. On the CPU the work is done when the call returns.
 *
 * Status. Every call that can fail returns a spec_status, whose numbers are InfiniOp's.
 * spec_last_error has a sentence for the thread's last failure. No call throws or unwinds.
 *
 * Sizes. Set the field `size` of a struct that begins with it to the struct's own sizeof.
 * Fields that an older program's shorter struct does not have count as absent tensors or
 * buffers, and as parameters with their defaults. Fields that only a newer program's longer
 * struct has must be zero. So `spec_x_tensors t = {0}; t.size = sizeof t;` describes a call
 * without tensors; then fill in the tensors that the call has.
 *
 * Memory. A pointer in a struct of buffers is a host pointer on the CPU, a device pointer
 * on CUDA, and a `spec_memory *` on wgpu, whose memory has no addresses. The pointer points
 * to as many elements as the tensor spans, aligned to the element's size. An output must not
 * overlap any other memory of the call. Absent arguments are NULL.
 *
 * Streams. On CUDA `stream` is a cudaStream_t (or CUstream) of the device's primary
 * context. NULL is the legacy default stream. A stream in capture mode captures the call. On
 * other backends `stream` is NULL. Enqueued work uses its memory until the work is done; the
 * caller orders all other use of that memory against the stream.
 *
 * Threads. Any thread may make any call. Threads may share handles, descriptors and corpora:
 * calls that take them as const may run at the same time. No handle or descriptor may be closed or
 * destroyed while another thread uses it. Only one call at a time may use a workspace, an
 * output or a spec_memory.
 *
 * Pointers to opaque types are NULL or come from this library. Calls refuse a pointer that
 * was closed, destroyed or freed with status 3, until the library uses the object's memory
 * for a new object.
 */

#ifndef SPEC_H
#define SPEC_H

#include <stddef.h>
#include <stdint.h>

/**
 * The version of this header's structs and functions. The version grows with a change that breaks
 * programs which were compiled with an older header. Additions alone do not change it.
 */
#define SPEC_ABI_VERSION 1

/**
 * The dtype of an absent tensor. Only optional arguments may be absent.
 */
#define SPEC_DTYPE_NONE 0

/**
 * A byte: 0 is false, every other value is true. The numbers of all dtypes are those of InfiniOp.
 */
#define SPEC_DTYPE_BOOL 2

/**
 * Signed 8-bit integer.
 */
#define SPEC_DTYPE_I8 3

/**
 * Signed 32-bit integer.
 */
#define SPEC_DTYPE_I32 5

/**
 * Signed 64-bit integer.
 */
#define SPEC_DTYPE_I64 6

/**
 * Unsigned 8-bit integer.
 */
#define SPEC_DTYPE_U8 7

/**
 * Unsigned 32-bit integer.
 */
#define SPEC_DTYPE_U32 9

/**
 * Unsigned 64-bit integer.
 */
#define SPEC_DTYPE_U64 10

/**
 * IEEE half precision.
 */
#define SPEC_DTYPE_F16 12

/**
 * IEEE single precision.
 */
#define SPEC_DTYPE_F32 13

/**
 * bfloat16, the upper half of an IEEE single-precision number.
 */
#define SPEC_DTYPE_BF16 19

/**
 * The largest possible `rank` of a tensor.
 */
#define SPEC_MAX_RANK 4

/**
 * The result of a call. The numbers are those of InfiniOp. `spec_last_error` has a sentence for
 * each failure.
 */
enum spec_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The call succeeded.
     */
    SPEC_STATUS_SUCCESS = 0,
    /**
     * The device or the system failed: a driver error, a lost device, not enough memory.
     */
    SPEC_STATUS_INTERNAL_ERROR = 1,
    /**
     * The operator or option exists, but the device's backend does not have it.
     */
    SPEC_STATUS_NOT_IMPLEMENTED = 2,
    /**
     * A parameter is out of its range.
     */
    SPEC_STATUS_BAD_PARAM = 3,
    /**
     * A required argument is absent, or a pointer is null.
     */
    SPEC_STATUS_NULL_POINTER = 4,
    /**
     * The memory or stream belongs to another kind of device.
     */
    SPEC_STATUS_DEVICE_TYPE_NOT_SUPPORTED = 5,
    /**
     * There is no such device on this machine.
     */
    SPEC_STATUS_DEVICE_NOT_FOUND = 6,
    /**
     * The device exists but has not been opened.
     */
    SPEC_STATUS_DEVICE_NOT_INITIALIZED = 7,
    /**
     * The device is older than what the kernels need.
     */
    SPEC_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED = 8,
    /**
     * The operator does not take a tensor's element type.
     */
    SPEC_STATUS_BAD_TENSOR_DTYPE = 10,
    /**
     * A tensor's shape, or a buffer's size, does not fit.
     */
    SPEC_STATUS_BAD_TENSOR_SHAPE = 11,
    /**
     * The operator does not take a tensor's strides.
     */
    SPEC_STATUS_BAD_TENSOR_STRIDES = 12,
    /**
     * The workspace is smaller than the descriptor's workspace size.
     */
    SPEC_STATUS_INSUFFICIENT_WORKSPACE = 13,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum spec_status spec_status;
#else
typedef int32_t spec_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Finished texts in device memory, from which `suffix_lookup` drafts for other requests.
 * `spec_corpus_create` and `spec_corpus_load` make a corpus, `spec_corpus_destroy` destroys it.
 * Threads may share it.
 *
 * The texts lie one after the other, each with a negative token behind it, in a buffer of `limit`
 * tokens whose address never changes. A word of device memory has the number of tokens. So a
 * descriptor is created once, and a captured CUDA graph sees every text that was appended since.
 * A token takes 4 or 8 bytes of device memory and as many of host memory. What one user wrote
 * becomes a draft of another: where the time of an answer must tell nothing about other texts,
 * keep a corpus for each tenant.
 */
typedef struct spec_corpus spec_corpus;

/**
 * An operator that was created for its tensors on a device. `spec_<operator>_create` makes a
 * descriptor, `spec_destroy` destroys it. A descriptor never changes: threads may share it, each
 * with a workspace and buffers of its own.
 */
typedef struct spec_descriptor spec_descriptor;

/**
 * An open device. `spec_open` makes a handle, `spec_close` closes it; threads may share it.
 */
typedef struct spec_handle spec_handle;

/**
 * Memory on a device. `spec_allocate` allocates it, `spec_free` frees it. Only one thread at a
 * time may pass it to a call.
 */
typedef struct spec_memory spec_memory;

/**
 * Properties of a device.
 */
typedef struct {
    /**
     * The name that `spec_open` takes, for example "cuda:0"; for a backend without a device,
     * the backend's name, for example "cuda".
     */
    char name[32];
    /**
     * The vendor's name of the device; for a backend without a device, the reason why it has
     * none.
     */
    char description[216];
    /**
     * Size of the device's memory in bytes, 0 if unknown.
     */
    uint64_t memory;
    /**
     * 0 for a device; for a backend without a device, the status of the failed search.
     */
    int32_t status;
    /**
     * 1 for a software renderer, which is a GPU's interface on a CPU, otherwise 0.
     */
    uint32_t software;
    /**
     * Zeros, reserved for later versions.
     */
    uint64_t reserved[4];
} spec_device;

/**
 * Describes a tensor. A struct of zeros describes an absent tensor.
 */
typedef struct {
    /**
     * One of `SPEC_DTYPE_..`; 0 for an absent tensor.
     */
    uint32_t dtype;
    /**
     * The number of dimensions, 1 to 4.
     */
    uint32_t rank;
    /**
     * The extent of each dimension.
     */
    int64_t shape[4];
    /**
     * The distance in elements from one index to the next in each dimension; all zero for a
     * packed row-major tensor.
     */
    int64_t strides[4];
} spec_tensor;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The `SPEC_ABI_VERSION` that the library was built with.
 */
uint32_t spec_abi_version(void);

/**
 * The name of a status, for example "bad tensor shape"; NULL for a number that is no status. The
 * text is never freed.
 */
const char *spec_status_name(int32_t status);

/**
 * Copies the last error of this thread to `buffer`: a sentence in UTF-8 that names the call, the
 * argument, its value and the expected value. The sentence ends with a zero and is cut if
 * `buffer` is too small.
 *
 * Returns the number of bytes that the whole sentence needs, including its zero; 1 if no call of
 * this thread has failed. A call that succeeds does not change the sentence.
 *
 * # Safety
 * `buffer` is NULL or has room for `size` bytes.
 */
size_t spec_last_error(char *buffer, size_t size);

/**
 * Lists the devices of each backend. A backend without a device gets one entry with the reason.
 * Every call searches for devices again, which takes time.
 *
 * `count` becomes the number of entries; at most `capacity` of them are written to `devices`,
 * which may be NULL if `capacity` is 0.
 *
 * # Errors
 * Status 4 for a null pointer.
 *
 * # Safety
 * `devices` has room for `capacity` entries; `count` is NULL or points to memory for a `size_t`.
 */
spec_status spec_devices(spec_device *devices, size_t capacity, size_t *count);

/**
 * Opens a device by name: "cpu", "cuda", "cuda:1", "wgpu:0", or "auto" for the first GPU, or
 * the CPU on a machine without one.
 *
 * On CUDA the handle retains the device's primary context, which CUDA's runtime and PyTorch use
 * too. Opening a device again is cheap and makes another handle with a queue of its own.
 *
 * Where the call fails, `*handle` is NULL, whatever it was: a handle that is still open
 * has to be kept elsewhere.
 *
 * # Errors
 * Status 3 for a name that names no device, 4 for a null pointer, 6 if the machine has no such
 * device, 8 if the device is too old, 1 if opening the device fails.
 *
 * # Safety
 * `device` is NULL or text that ends with a zero; `handle` is NULL or points to memory for a
 * pointer.
 */
spec_status spec_open(const char *device, spec_handle **handle);

/**
 * Closes a handle. Descriptors and memory that were made with the handle stay valid until they
 * are destroyed or freed themselves.
 *
 * # Errors
 * Status 4 for NULL, 3 for a handle that is closed already.
 *
 * # Safety
 * No other thread uses the handle, now or later.
 */
spec_status spec_close(spec_handle *handle);

/**
 * Writes the properties of an open device.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a handle that is closed.
 *
 * # Safety
 * `handle` is from `spec_open`; `device` is NULL or points to memory for a `spec_device`.
 */
spec_status spec_handle_device(const spec_handle *handle, spec_device *device);

/**
 * Writes the handle's own stream: a `cudaStream_t` on CUDA, NULL on other backends. The stream
 * lives as long as the handle and does not wait for the default stream. `spec_synchronize` waits
 * for this stream, and memory from `spec_allocate` is allocated and freed in its order.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a handle that is closed.
 *
 * # Safety
 * `handle` is from `spec_open`; `stream` is NULL or points to memory for a pointer.
 */
spec_status spec_handle_stream(const spec_handle *handle, void **stream);

/**
 * Waits for all work that was enqueued on the handle's own stream. Work on the caller's own
 * streams is not waited for: use CUDA's functions for those.
 *
 * # Errors
 * Status 1, with the device's own message, if work failed since the last call; 4 for a null
 * pointer, 3 for a handle that is closed.
 *
 * # Safety
 * `handle` is from `spec_open`.
 */
spec_status spec_synchronize(const spec_handle *handle);

/**
 * Allocates `bytes` bytes on the device, contents unspecified.
 *
 * On CUDA the memory is allocated and freed in the order of the handle's own stream: use the
 * memory on that stream (`spec_handle_stream`), or order other streams against it.
 *
 * # Errors
 * Status 1 if the device has not enough memory, 4 for a null pointer, 3 for a handle that is
 * closed.
 *
 * # Safety
 * `handle` is from `spec_open`; `memory` is NULL or points to memory for a pointer.
 */
spec_status spec_allocate(const spec_handle *handle, size_t bytes, spec_memory **memory);

/**
 * Frees memory once the work that the handle's own stream has enqueued so far is done.
 *
 * # Errors
 * Status 4 for NULL, 3 for memory that was freed already.
 *
 * # Safety
 * No other thread uses the memory, now or later, nor does any work on other streams.
 */
spec_status spec_free(spec_memory *memory);

/**
 * Writes the address of memory: a host pointer on the CPU, a device pointer on CUDA. The address
 * is valid until the memory is freed.
 *
 * # Errors
 * Status 2 on wgpu, whose memory has no addresses, 4 for a null pointer, 3 for memory
 * that was freed.
 *
 * # Safety
 * `memory` is from `spec_allocate`; `address` is NULL or points to memory for a pointer.
 */
spec_status spec_memory_address(spec_memory *memory, void **address);

/**
 * Copies `bytes` bytes from the host to memory, beginning at byte `offset` of the memory, a
 * multiple of 4. The copy runs after all work that was enqueued on the handle's own stream;
 * `from` may be reused when the function returns.
 *
 * # Errors
 * Status 11 if the bytes do not fit, 4 for a null pointer, 3 for memory that was freed or an
 * offset that is no multiple of 4, 1 if the device fails.
 *
 * # Safety
 * `memory` is from `spec_allocate`; `from` points to `bytes` readable bytes.
 */
spec_status spec_write(spec_memory *memory, size_t offset, const void *from, size_t bytes);

/**
 * Waits for the work that was enqueued on the handle's own stream, then copies `bytes` bytes of
 * memory to the host, beginning at byte `offset` of the memory, a multiple of 4.
 *
 * # Errors
 * As `spec_write`.
 *
 * # Safety
 * `memory` is from `spec_allocate`; `to` points to `bytes` writable bytes.
 */
spec_status spec_read(const spec_memory *memory, size_t offset, void *to, size_t bytes);

/**
 * Makes an empty corpus on the handle's device, with room for `limit` tokens of dtype
 * `SPEC_DTYPE_I32` or `SPEC_DTYPE_I64`, separators included. `corpus` becomes yours, to be given to
 * `spec_corpus_destroy`, or NULL where the call fails.
 *
 * # Errors
 * Status 10 for another dtype, 3 for a limit outside 2 to 2^31 - 1 or a handle that is closed, 4
 * for a null pointer, 1 if there is not enough memory, 2 on wgpu, whose memory has no addresses.
 *
 * # Safety
 * `handle` is from `spec_open`; `corpus` is NULL or points to memory for a pointer.
 */
spec_status spec_corpus_create(const spec_handle *handle,
                               uint32_t dtype,
                               size_t limit,
                               spec_corpus **corpus);

/**
 * Makes a corpus with the texts of a file that `spec_corpus_save`, or Rust's or Python's `Corpus`,
 * wrote. Of a file that has more tokens than `limit`, the oldest texts are left out.
 *
 * # Errors
 * As `spec_corpus_create`; status 3 for a file that is damaged, no corpus, no regular file, or one
 * of the other dtype, and for a path that is not UTF-8; 1 if the file cannot be read.
 *
 * # Safety
 * As for `spec_corpus_create`; `path` is NULL or text that ends with a zero.
 */
spec_status spec_corpus_load(const spec_handle *handle,
                             uint32_t dtype,
                             const char *path,
                             size_t limit,
                             spec_corpus **corpus);

/**
 * Saves the texts to a file, which replaces the one at `path` when it is complete and safe on disk.
 * Only its owner can read the file. Other threads may append meanwhile. Of saves to one path at the
 * same time, the last one stays. What a killed save has left beside `path` is removed by the next.
 *
 * # Errors
 * Status 1 if the file cannot be written, or if `path` is something else than a regular file; what
 * was at `path` before is then still there. 4 for a null pointer, 3 for a corpus that was destroyed
 * or a path that is not UTF-8.
 *
 * # Safety
 * `corpus` is from this library; `path` is NULL or text that ends with a zero.
 */
spec_status spec_corpus_save(const spec_corpus *corpus, const char *path);

/**
 * Appends a finished text of `count` tokens in host memory, and a separator. Where they do not fit,
 * the oldest texts are dropped first: at least half of the tokens there are, and the rest of the
 * text that this cuts. Of a text longer than the limit, the last tokens are kept. Negative tokens
 * separate the parts of a text.
 *
 * The call waits for threads that hold `spec_corpus_lock`, and on CUDA for the work that was
 * enqueued on the handle's own stream; nothing may be appended while that stream is captured. Work
 * that starts later, on any stream, sees the text. Work on another stream that runs meanwhile may
 * draft from half of the change, which costs drafts and never a wrong text, because verification
 * rejects what the model would not have written.
 *
 * # Errors
 * Status 1 if the device fails; the corpus may then have lost its newest or its oldest texts, and
 * still serves calls. 4 for a null pointer, 3 for a corpus that was destroyed or a text that is not
 * aligned to its tokens.
 *
 * # Safety
 * `corpus` is from this library; `text` points to `count` tokens of the corpus's dtype.
 */
spec_status spec_corpus_append(const spec_corpus *corpus, const void *text, size_t count);

/**
 * Forgets all texts and overwrites their memory. Waits as `spec_corpus_append` does.
 *
 * # Errors
 * Status 1 if the device fails, 4 for NULL, 3 for a corpus that was destroyed.
 *
 * # Safety
 * `corpus` is from this library.
 */
spec_status spec_corpus_clear(const spec_corpus *corpus);

/**
 * Writes how many tokens there are, separators included, and how many there can be. Either pointer
 * may be NULL.
 *
 * # Errors
 * Status 4 if `corpus` is NULL, 3 for a corpus that was destroyed.
 *
 * # Safety
 * `corpus` is from this library; `count` and `limit` are NULL or point to memory for a `size_t`.
 */
spec_status spec_corpus_size(const spec_corpus *corpus, size_t *count, size_t *limit);

/**
 * Writes the pointers to give to `suffix_lookup`: `tokens` for `corpus`, a packed tensor of `limit`
 * tokens, and `length` for `corpus_length`, a tensor of one i32, the number of tokens. They are
 * host pointers on the CPU and device pointers on CUDA, are valid until the corpus is destroyed, and
 * never change, so that a captured graph may keep them. The memory must not be written.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a corpus that was destroyed.
 *
 * # Safety
 * `corpus` is from this library; `tokens` and `length` are NULL or point to memory for a pointer.
 */
spec_status spec_corpus_pointers(const spec_corpus *corpus,
                                 const void **tokens,
                                 const void **length);

/**
 * Keeps the corpus as it is until `spec_corpus_unlock`: appending waits. Hold the lock during each
 * call that reads the corpus: on the CPU until the call returns, on CUDA while the call is enqueued.
 * Many threads may hold it at the same time. A thread that holds the lock must neither append, nor
 * clear, nor lock again: it would wait for itself.
 *
 * Replays of a captured graph need no lock; see `spec_corpus_append` for what they see.
 *
 * # Errors
 * Status 4 for NULL, 3 for a corpus that was destroyed.
 *
 * # Safety
 * `corpus` is from this library.
 */
spec_status spec_corpus_lock(const spec_corpus *corpus);

/**
 * Gives back what `spec_corpus_lock` took, once for each call of it, on whichever thread.
 *
 * # Errors
 * Status 4 for NULL, 3 for a corpus that was destroyed or is not locked.
 *
 * # Safety
 * `corpus` is from this library.
 */
spec_status spec_corpus_unlock(const spec_corpus *corpus);

/**
 * Destroys a corpus and frees its memory once the work that the handle's own stream has enqueued so
 * far is done. Descriptors that were created for it stay valid, and read other memory from then on.
 *
 * # Errors
 * Status 4 for NULL, 3 for a corpus that was destroyed already, or that is locked.
 *
 * # Safety
 * No other thread uses the corpus, now or later, nor does any work on other streams.
 */
spec_status spec_corpus_destroy(spec_corpus *corpus);

/**
 * Writes the size in bytes of the workspace that a call needs, which may be 0. The workspace is
 * host memory on the CPU, device memory with the alignment of `cudaMalloc` on CUDA, and a
 * `spec_memory` on wgpu.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a descriptor that was destroyed.
 *
 * # Safety
 * `descriptor` is from `spec_<operator>_create`; `bytes` is NULL or points to memory for a
 * `size_t`.
 */
spec_status spec_workspace_size(const spec_descriptor *descriptor, size_t *bytes);

/**
 * Copies to `buffer` which kernels a call runs, with their launch shapes, in words: what the data
 * decide is not known, and memory counts as aligned to 256 bytes. The words end with a zero and are
 * cut if `buffer` is too small. They are for people and tests, and change with the kernels. `bytes`,
 * unless it is NULL, is set to the number of bytes that all words need, including their zero.
 *
 * # Errors
 * Status 4 for a descriptor that is NULL, 3 for a descriptor that was destroyed.
 *
 * # Safety
 * `descriptor` is from `spec_<operator>_create`; `buffer` is NULL or has room for `size` bytes;
 * `bytes` is NULL or points to memory for a `size_t`.
 */
spec_status spec_route(const spec_descriptor *descriptor,
                       char *buffer,
                       size_t size,
                       size_t *bytes);

/**
 * Destroys a descriptor. Work that was enqueued with the descriptor continues.
 *
 * # Errors
 * Status 4 for NULL, 3 for a descriptor that was destroyed already.
 *
 * # Safety
 * No other thread uses the descriptor, now or later.
 */
spec_status spec_destroy(spec_descriptor *descriptor);

/**
 * How a logit becomes a score.
 * The logistic function of the logit.
 */
#define SPEC_SCORING_SIGMOID 0

/**
 * How a logit becomes a score.
 * Softmax over all experts of the token.
 */
#define SPEC_SCORING_SOFTMAX 1

/**
 * How a logit becomes a score.
 * The square root of ln(1 + e^x), as in DeepSeek-V4.
 */
#define SPEC_SCORING_SQRT_SOFTPLUS 2

/**
 * The number by which experts are picked.
 * The score plus bias.
 */
#define SPEC_SELECT_SCORE 0

/**
 * The number by which experts are picked.
 * The logit plus bias. Different logits can have equal scores where the scoring function
 * saturates, so this avoids ties.
 */
#define SPEC_SELECT_LOGIT 1

/**
 * How the choices of a group become the group's score.
 * The sum of the two largest choices; with one expert in a group, its only choice.
 */
#define SPEC_GROUP_SCORE_TOP2_SUM 0

/**
 * How the choices of a group become the group's score.
 * The largest choice.
 */
#define SPEC_GROUP_SCORE_MAX 1

/**
 * What happens to the experts of groups that are not kept.
 * Their choices become 0.0, which can still win over a negative choice
 * (InfiniOp and the Hugging Face reference).
 */
#define SPEC_MASKED_ZERO 0

/**
 * What happens to the experts of groups that are not kept.
 * These experts cannot be picked (TensorRT-LLM, vLLM).
 */
#define SPEC_MASKED_EXCLUDED 1

/**
 * When a draft token is accepted.
 * With probability `min(1, target / draft)`.
 */
#define SPEC_ACCEPTANCE_PROBABILISTIC 0

/**
 * When a draft token is accepted.
 * If it equals the target's argmax (lowest index among equals).
 */
#define SPEC_ACCEPTANCE_GREEDY 1

/**
 * How the token that replaces a rejected one is chosen.
 * The token with the largest residual. Does not preserve the target distribution.
 */
#define SPEC_RECOVERY_ARGMAX 0

/**
 * How the token that replaces a rejected one is chosen.
 * A token drawn from the residual. Preserves the target distribution.
 */
#define SPEC_RECOVERY_SAMPLE 1

/**
 * Which of several earlier occurrences of the same length the draft is copied from.
 * The first in the text, as vLLM's proposer on the CPU does.
 */
#define SPEC_OCCURRENCE_FIRST 0

/**
 * Which of several earlier occurrences of the same length the draft is copied from.
 * The last in the text, as vLLM's proposer on the GPU does. This guesses better in code
 * and conversation, which repeat recent text.
 */
#define SPEC_OCCURRENCE_LAST 1

/**
 * The parameters of topk_router.
 */
typedef struct {
    /**
     * sizeof(spec_topk_router_params).
     */
    size_t size;
    /**
     * How logits become scores.
     * SPEC_SCORING_SIGMOID or SPEC_SCORING_SOFTMAX or SPEC_SCORING_SQRT_SOFTPLUS.
     * Default: SPEC_SCORING_SOFTMAX.
     */
    uint64_t scoring;
    /**
     * The number by which experts are picked.
     * SPEC_SELECT_SCORE or SPEC_SELECT_LOGIT.
     * Default: SPEC_SELECT_SCORE.
     */
    uint64_t select;
    /**
     * The number of groups; it divides the number of experts.
     * Default: 1.
     */
    size_t groups;
    /**
     * How many groups are kept.
     * Default: 1.
     */
    size_t topk_groups;
    /**
     * How groups are scored.
     * SPEC_GROUP_SCORE_TOP2_SUM or SPEC_GROUP_SCORE_MAX.
     * Default: SPEC_GROUP_SCORE_TOP2_SUM.
     */
    uint64_t group_score;
    /**
     * What happens to the experts of groups that are not kept.
     * SPEC_MASKED_ZERO or SPEC_MASKED_EXCLUDED.
     * Default: SPEC_MASKED_EXCLUDED.
     */
    uint64_t masked;
    /**
     * How many experts each token is routed to, at most 64.
     * It has no default.
     */
    size_t topk;
    /**
     * Whether the weights of a token are divided by their sum.
     * 1 for yes, 0 for no.
     * Default: true.
     */
    uint64_t renormalize;
    /**
     * The routed scaling factor, which multiplies the weights of picks.
     * Default: 1.
     */
    double scale;
    /**
     * The number of shared experts, at most 64. Every token goes to them, in columns behind
     * the picks. The first has the index `experts`, or `physical_experts` where that is set.
     * Default: 0.
     */
    size_t shared_experts;
    /**
     * The weight of each shared expert; `scale` does not multiply it.
     * Default: 1.
     */
    double shared_weight;
    /**
     * The number of places for experts on all devices together. Set if and only if `replicas`
     * is given.
     * 0: none.
     * Default: none.
     */
    size_t physical_experts;
} spec_topk_router_params;

/**
 * Descriptors of the arguments of topk_router.
 */
typedef struct {
    /**
     * sizeof(spec_topk_router_tensors).
     */
    size_t size;
    /**
     * `[tokens, experts]`, f32 or f16 or bf16: read.
     * The logits of 1 to 4096 experts.
     */
    spec_tensor x;
    /**
     * `[experts]`, f32 or f16 or bf16: read, optional.
     * The correction bias of each expert, added to its score or logit when experts are picked.
     */
    spec_tensor bias;
    /**
     * `[1]`, i32: read, optional.
     * The number of rows that are tokens; the rows behind them are padding. Absent: no
     * padding.
     */
    spec_tensor num_tokens;
    /**
     * `[experts, max_replicas]`, i32: read, optional.
     * The places of each expert on all devices, each in `0..physical_experts`.
     */
    spec_tensor replicas;
    /**
     * `[experts]`, i32: read, optional.
     * The number of places of each expert, at least 1. Given if and only if `replicas` is.
     */
    spec_tensor replica_counts;
    /**
     * `[tokens, topk + shared_experts]`, f32 or f16 or bf16: written.
     * The routing weights.
     */
    spec_tensor weights;
    /**
     * `[tokens, topk + shared_experts]`, i32 or u32 or i64: written.
     * The experts in descending order of choice, or their places; -1 in rows of padding.
     * In u32, -1 is 2^32 - 1.
     */
    spec_tensor indices;
    /**
     * `[physical_experts]`, i32: changed in place, optional.
     * The number of picks of each expert, or of each place where `replicas` is given, added to
     * the previous values; shared experts are not counted.
     */
    spec_tensor load;
    /**
     * `[1]`, u32: changed in place, optional.
     * Bits for bad data, OR-ed into the previous value; only the caller clears them. 1: a
     * logit, or a bias that is used, is not finite. 2: an expert of `chosen` is out of range
     * and is no pick, or a pick's place is out of range and its index is -1. 4: `num_tokens`
     * or a replica count is out of range and was cut.
     */
    spec_tensor flags;
    /**
     * `[tokens, topk]`, i32: read, optional.
     * The experts of each token, given instead of picked by their logits; -1 for no pick.
     */
    spec_tensor chosen;
    /**
     * `[tokens, topk + shared_experts]`, i32: written, optional.
     * The experts before `replicas` replaces them with places, which a run records for a
     * replay with `chosen`.
     */
    spec_tensor logical;
} spec_topk_router_tensors;

/**
 * The memory of the tensors that spec_topk_router_tensors describes.
 */
typedef struct {
    /**
     * sizeof(spec_topk_router_buffers).
     */
    size_t size;
    const void *x;
    const void *bias;
    const void *num_tokens;
    const void *replicas;
    const void *replica_counts;
    void *weights;
    void *indices;
    void *load;
    void *flags;
    const void *chosen;
    void *logical;
} spec_topk_router_buffers;

/**
 * Mixture-of-experts routing: the `topk` experts of each token.
 *
 * Creates the operator for these tensors on the handle's device: checks everything
 * that they and the parameters can show. `descriptor` becomes yours, to be given to
 * `spec_destroy`, or NULL where the call fails.
 *
 * - `x` `[tokens, experts]`, f32 or f16 or bf16: read.
 * - `bias` `[experts]`, f32 or f16 or bf16: read, optional.
 * - `num_tokens` `[1]`, i32: read, optional.
 * - `chosen` `[tokens, topk]`, i32: read, optional.
 * - `replicas` `[experts, max_replicas]`, i32: read, optional.
 * - `replica_counts` `[experts]`, i32: read, optional.
 * - `weights` `[tokens, topk + shared_experts]`, f32 or f16 or bf16: written.
 * - `indices` `[tokens, topk + shared_experts]`, i32 or u32 or i64: written.
 * - `logical` `[tokens, topk + shared_experts]`, i32: written, optional.
 * - `load` `[physical_experts]`, i32: changed in place, optional.
 * - `flags` `[1]`, u32: changed in place, optional.
 *
 * # Errors
 * Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the backend
 * lacks it, 1 or 8 where the device cannot run it.
 *
 * # Safety
 * `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is a
 * place.
 */
spec_status spec_topk_router_create(const spec_handle *handle,
                                    const spec_topk_router_params *params,
                                    const spec_topk_router_tensors *tensors,
                                    spec_descriptor **descriptor);

/**
 * Sets the parameters of topk_router to their defaults, and those that a caller must give
 * to 0.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a `size` that is none.
 *
 * # Safety
 * `params` has its `size` set.
 */
spec_status spec_topk_router_defaults(spec_topk_router_params *params);

/**
 * Enqueues topk_router on `stream`, and does nothing else.
 *
 * # Errors
 * Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not aligned,
 * 13 for a workspace that is too small, 1 where the device refuses. Bad values in the
 * data are no errors: they set `flags`.
 *
 * # Safety
 * `descriptor` is from `spec_topk_router_create`, `workspace` has `workspace_size` bytes,
 * and each buffer as many elements as its tensor spans, until the work is done.
 */
spec_status spec_topk_router_calculate(const spec_descriptor *descriptor,
                                       void *workspace,
                                       size_t workspace_size,
                                       const spec_topk_router_buffers *buffers,
                                       void *stream);

/**
 * Sets the parameters of topk_router to those of a published model: "DeepSeek-V3",
 * "Kimi K2", "Mixtral" and so on. `experts` becomes its number of experts and
 * `has_bias` 1 where it has a correction bias, else 0; both may be NULL.
 *
 * # Errors
 * Status 3 for a model that is not known, with the names of those that are, or a
 * `size` that is none; 4 for a null pointer.
 *
 * # Safety
 * `model` is text that ends with a zero; `params` has its `size` set.
 */
spec_status spec_topk_router_preset(const char *model,
                                    spec_topk_router_params *params,
                                    size_t *experts,
                                    uint32_t *has_bias);

/**
 * The parameters of deduplicate_topk.
 */
typedef struct {
    /**
     * sizeof(spec_deduplicate_topk_params).
     */
    size_t size;
    /**
     * The number of rows of `indices` that belong to one request.
     * Default: 1.
     */
    size_t mtp_step;
} spec_deduplicate_topk_params;

/**
 * Descriptors of the arguments of deduplicate_topk.
 */
typedef struct {
    /**
     * sizeof(spec_deduplicate_topk_tensors).
     */
    size_t size;
    /**
     * `[batch * mtp_step, k]`, i32: read.
     * Candidates; negative values are padding. `batch` must fit an i32.
     */
    spec_tensor indices;
    /**
     * `[batch, mtp_step * k]`, i32: written.
     * The distinct values of each request, ascending, then -1.
     */
    spec_tensor unique;
    /**
     * `[batch]`, i32: written, optional.
     * The number of distinct values of each request.
     */
    spec_tensor counts;
    /**
     * `[batch * mtp_step, k]`, i32: written, optional.
     * Where each index stands in its request's row of `unique`; -1 for padding.
     */
    spec_tensor inverse;
} spec_deduplicate_topk_tensors;

/**
 * The memory of the tensors that spec_deduplicate_topk_tensors describes.
 */
typedef struct {
    /**
     * sizeof(spec_deduplicate_topk_buffers).
     */
    size_t size;
    const void *indices;
    void *unique;
    void *counts;
    void *inverse;
} spec_deduplicate_topk_buffers;

/**
 * The distinct values of each request's top-k rows, ascending.
 *
 * Creates the operator for these tensors on the handle's device: checks everything
 * that they and the parameters can show. `descriptor` becomes yours, to be given to
 * `spec_destroy`, or NULL where the call fails.
 *
 * - `indices` `[batch * mtp_step, k]`, i32: read.
 * - `unique` `[batch, mtp_step * k]`, i32: written.
 * - `counts` `[batch]`, i32: written, optional.
 * - `inverse` `[batch * mtp_step, k]`, i32: written, optional.
 *
 * # Errors
 * Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the backend
 * lacks it, 1 or 8 where the device cannot run it.
 *
 * # Safety
 * `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is a
 * place.
 */
spec_status spec_deduplicate_topk_create(const spec_handle *handle,
                                         const spec_deduplicate_topk_params *params,
                                         const spec_deduplicate_topk_tensors *tensors,
                                         spec_descriptor **descriptor);

/**
 * Sets the parameters of deduplicate_topk to their defaults, and those that a caller must give
 * to 0.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a `size` that is none.
 *
 * # Safety
 * `params` has its `size` set.
 */
spec_status spec_deduplicate_topk_defaults(spec_deduplicate_topk_params *params);

/**
 * Enqueues deduplicate_topk on `stream`, and does nothing else.
 *
 * # Errors
 * Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not aligned,
 * 13 for a workspace that is too small, 1 where the device refuses. Bad values in the
 * data are no errors: they set `flags`.
 *
 * # Safety
 * `descriptor` is from `spec_deduplicate_topk_create`, `workspace` has `workspace_size` bytes,
 * and each buffer as many elements as its tensor spans, until the work is done.
 */
spec_status spec_deduplicate_topk_calculate(const spec_descriptor *descriptor,
                                            void *workspace,
                                            size_t workspace_size,
                                            const spec_deduplicate_topk_buffers *buffers,
                                            void *stream);

/**
 * The parameters of rejection_sample.
 */
typedef struct {
    /**
     * sizeof(spec_rejection_sample_params).
     */
    size_t size;
    /**
     * The largest number of drafts of a request. A request with more is cut to it. If all the
     * drafts that are left are accepted, the bonus token follows, which was drawn for the
     * position behind the drafts that were cut away. So draft no more than `max_spec_len`.
     * It has no default.
     */
    size_t max_spec_len;
    /**
     * When a draft token is accepted. Requests that `greedy` marks follow the target's argmax
     * instead.
     * SPEC_ACCEPTANCE_PROBABILISTIC or SPEC_ACCEPTANCE_GREEDY.
     * Default: SPEC_ACCEPTANCE_PROBABILISTIC.
     */
    uint64_t acceptance;
    /**
     * How the recovered token is chosen. Not used with greedy acceptance.
     * SPEC_RECOVERY_ARGMAX or SPEC_RECOVERY_SAMPLE.
     * Default: SPEC_RECOVERY_SAMPLE.
     */
    uint64_t recovery;
} spec_rejection_sample_params;

/**
 * Descriptors of the arguments of rejection_sample.
 */
typedef struct {
    /**
     * sizeof(spec_rejection_sample_tensors).
     */
    size_t size;
    /**
     * `[tokens, vocab]`, f32 or f16 or bf16: read.
     * The probabilities of the target model, a row for each draft. At a request's
     * first step: the rows after the prompt, and after each draft but the last.
     */
    spec_tensor target_probs;
    /**
     * `[tokens, vocab]`, f32 or f16 or bf16: read, optional.
     * The probabilities that each draft was drawn from, in the type of
     * `target_probs`; absent where drafts are deterministic. Not read for
     * greedy requests. At the first step: the drafter's rows after the prompt.
     */
    spec_tensor draft_probs;
    /**
     * `[tokens]`, i64 or i32 or u32: read.
     * The draft tokens, one request behind the other. At the first step: guesses of the tokens
     * that follow the prompt.
     */
    spec_tensor draft_token_ids;
    /**
     * `[batch]`, i64 or i32 or u32: read.
     * The token that follows if all drafts of a request are accepted, drawn from the target's
     * row after the last draft. At a first step without drafts: the first token after the
     * prompt.
     */
    spec_tensor bonus_token_ids;
    /**
     * `[batch + 1] or [batch]`, i64 or i32 or u32: read.
     * The sums of the numbers of drafts, which say where each request's drafts end; with or
     * without a leading 0: `[0, 3, 5]` or `[3, 5]` for 3 and 2 drafts. A request without
     * drafts, as at a first step, repeats the number before.
     */
    spec_tensor cu_num_draft;
    /**
     * `[tokens]`, f32: read, optional.
     * The random numbers for acceptance in [0, 1), one for each draft; absent: drawn from
     * `seeds` and `positions`. Not read for greedy requests. The same at every step.
     */
    spec_tensor uniform_samples;
    /**
     * `[batch]`, u64: read, optional.
     * The seed of each request. Required where acceptance is probabilistic and either recovery
     * is `sample` or `uniform_samples` is absent. At the first step: any number; the same at
     * every later step of the request.
     */
    spec_tensor seeds;
    /**
     * `[batch]`, i64 or i32: read, optional.
     * The position of each request's first draft in its own text, prompt
     * included. Required where `seeds` is. At the first step: the number of
     * tokens of the prompt; each step adds the number of emitted tokens.
     */
    spec_tensor positions;
    /**
     * `[batch]`, i32 or i8 or u8 or bool: read, optional.
     * Not 0 for each request that follows the target's argmax, whatever `acceptance` is;
     * absent: no request. At every step: whether the request's temperature is 0.
     */
    spec_tensor greedy;
    /**
     * `[batch, max_spec_len + 1]`, i32 or i64 or u32: written.
     * The emitted tokens: the accepted drafts, then the recovered or the bonus
     * token, then -1 (the largest value in u32).
     */
    spec_tensor output_token_ids;
    /**
     * `[batch]`, i32: written.
     * The number of tokens emitted, the recovered or bonus token included, so never 0.
     */
    spec_tensor num_accepted;
    /**
     * `[batch]`, i32: written.
     * The number of draft tokens accepted; 0 at a first step without drafts.
     */
    spec_tensor accepted_counts;
    /**
     * `[batch]`, i32: written.
     * 1 where a recovered token was emitted, else 0; 0 at a first step without drafts.
     */
    spec_tensor recovered_counts;
    /**
     * `[batch]`, i32: written.
     * 1 where the bonus token was emitted, else 0; 1 at a first step without drafts.
     */
    spec_tensor bonus_counts;
    /**
     * `[1]`, u32: changed in place, optional.
     * Bits for bad data, OR-ed into the previous value; only the caller clears them. 1: a
     * probability or a uniform sample is not finite; the draft is rejected. 2: a draft is
     * outside the vocabulary and is rejected, or a bonus token is, and token 0 is emitted. 4:
     * offsets descend or leave the drafts, or a request has more than `max_spec_len` drafts
     * and was cut.
     */
    spec_tensor flags;
} spec_rejection_sample_tensors;

/**
 * The memory of the tensors that spec_rejection_sample_tensors describes.
 */
typedef struct {
    /**
     * sizeof(spec_rejection_sample_buffers).
     */
    size_t size;
    const void *target_probs;
    const void *draft_probs;
    const void *draft_token_ids;
    const void *bonus_token_ids;
    const void *cu_num_draft;
    const void *uniform_samples;
    const void *seeds;
    const void *positions;
    const void *greedy;
    void *output_token_ids;
    void *num_accepted;
    void *accepted_counts;
    void *recovered_counts;
    void *bonus_counts;
    void *flags;
} spec_rejection_sample_buffers;

/**
 * Verifies draft tokens against the target model (Leviathan et al., 2023).
 *
 * Creates the operator for these tensors on the handle's device: checks everything
 * that they and the parameters can show. `descriptor` becomes yours, to be given to
 * `spec_destroy`, or NULL where the call fails.
 *
 * - `target_probs` `[tokens, vocab]`, f32 or f16 or bf16: read.
 * - `draft_probs` `[tokens, vocab]`, f32 or f16 or bf16: read, optional.
 * - `draft_token_ids` `[tokens]`, i64 or i32 or u32: read.
 * - `bonus_token_ids` `[batch]`, i64 or i32 or u32: read.
 * - `cu_num_draft` `[batch + 1] or [batch]`, i64 or i32 or u32: read.
 * - `uniform_samples` `[tokens]`, f32: read, optional.
 * - `seeds` `[batch]`, u64: read, optional.
 * - `positions` `[batch]`, i64 or i32: read, optional.
 * - `greedy` `[batch]`, i32 or i8 or u8 or bool: read, optional.
 * - `output_token_ids` `[batch, max_spec_len + 1]`, i32 or i64 or u32: written.
 * - `num_accepted` `[batch]`, i32: written.
 * - `accepted_counts` `[batch]`, i32: written.
 * - `recovered_counts` `[batch]`, i32: written.
 * - `bonus_counts` `[batch]`, i32: written.
 * - `flags` `[1]`, u32: changed in place, optional.
 *
 * # Errors
 * Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the backend
 * lacks it, 1 or 8 where the device cannot run it.
 *
 * # Safety
 * `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is a
 * place.
 */
spec_status spec_rejection_sample_create(const spec_handle *handle,
                                         const spec_rejection_sample_params *params,
                                         const spec_rejection_sample_tensors *tensors,
                                         spec_descriptor **descriptor);

/**
 * Sets the parameters of rejection_sample to their defaults, and those that a caller must give
 * to 0.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a `size` that is none.
 *
 * # Safety
 * `params` has its `size` set.
 */
spec_status spec_rejection_sample_defaults(spec_rejection_sample_params *params);

/**
 * Enqueues rejection_sample on `stream`, and does nothing else.
 *
 * # Errors
 * Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not aligned,
 * 13 for a workspace that is too small, 1 where the device refuses. Bad values in the
 * data are no errors: they set `flags`.
 *
 * # Safety
 * `descriptor` is from `spec_rejection_sample_create`, `workspace` has `workspace_size` bytes,
 * and each buffer as many elements as its tensor spans, until the work is done.
 */
spec_status spec_rejection_sample_calculate(const spec_descriptor *descriptor,
                                            void *workspace,
                                            size_t workspace_size,
                                            const spec_rejection_sample_buffers *buffers,
                                            void *stream);

/**
 * The parameters of adjust_logits.
 */
typedef struct {
    /**
     * sizeof(spec_adjust_logits_params).
     */
    size_t size;
    /**
     * Whether the tokens before the last of a bad word may lie in the prompt.
     * 1 for yes, 0 for no.
     * Default: false.
     */
    uint64_t bad_words_in_prompt;
    /**
     * The token of the first column. Above 0 where the columns are a part of a vocabulary
     * whose other parts other calls adjust.
     * Default: 0.
     */
    int64_t first_token;
    /**
     * The number of tokens of the whole vocabulary; 0: the columns and the tokens before them.
     * Default: 0.
     */
    int64_t vocab;
} spec_adjust_logits_params;

/**
 * Descriptors of the arguments of adjust_logits.
 */
typedef struct {
    /**
     * sizeof(spec_adjust_logits_tensors).
     */
    size_t size;
    /**
     * `[rows, columns]`, f32 or f16 or bf16: changed in place.
     * Logits, adjusted in place.
     */
    spec_tensor logits;
    /**
     * `[requests, max_len]`, i64 or i32: read.
     * The text of each request, the prompt first. Tokens behind `lengths` are not read.
     */
    spec_tensor tokens;
    /**
     * `[requests]`, i32 or i64: read.
     * How many tokens of each text are the prompt.
     */
    spec_tensor prompt_lengths;
    /**
     * `[requests]`, i32 or i64: read.
     * How many tokens each text has.
     */
    spec_tensor lengths;
    /**
     * `[rows]`, i32: read, optional.
     * The request of each row; -1: padding. Absent: row r is request r.
     */
    spec_tensor requests;
    /**
     * `[rows]`, i64 or i32: read, optional.
     * The draft token of each row, where rows are drafts. The entry of a row without a parent
     * is not read. Needs `parents`.
     */
    spec_tensor draft_tokens;
    /**
     * `[rows]`, i32: read, optional.
     * The row before each row, -1 for a row that decides after the text itself.
     */
    spec_tensor parents;
    /**
     * `[requests + 1]`, i32: read, optional.
     * Where the bias of each request starts and ends in `bias_tokens`. Needs `bias_tokens` and
     * `bias_values`.
     */
    spec_tensor bias_offsets;
    /**
     * `[biases]`, i32: read, optional.
     * Tokens with a bias.
     */
    spec_tensor bias_tokens;
    /**
     * `[biases]`, f32: read, optional.
     * The value that is added to the logit of each of `bias_tokens`; may be infinite.
     */
    spec_tensor bias_values;
    /**
     * `[requests]`, f32: read, optional.
     * The repetition penalty of each request. Positive logits of tokens in its text are
     * divided by it, other logits of such tokens are multiplied with it; 1 for none.
     */
    spec_tensor repetition;
    /**
     * `[requests]`, f32: read, optional.
     * The frequency penalty of each request, subtracted from a logit once for each time that
     * its token was generated; 0 for none.
     */
    spec_tensor frequency;
    /**
     * `[requests]`, f32: read, optional.
     * The presence penalty of each request, subtracted once from the logit of each token that
     * was generated; 0 for none.
     */
    spec_tensor presence;
    /**
     * `[requests]`, i32: read, optional.
     * How many tokens each request must generate before a stop token. Needs `stop_tokens`.
     */
    spec_tensor min_tokens;
    /**
     * `[requests, stops]`, i32: read, optional.
     * Tokens that end each request; -1 for none.
     */
    spec_tensor stop_tokens;
    /**
     * `[requests + 1]`, i32: read, optional.
     * Where the bad words of each request start and end in the list of words. Needs
     * `word_offsets` and `word_tokens`.
     */
    spec_tensor bad_offsets;
    /**
     * `[words + 1]`, i32: read, optional.
     * Where each word starts and ends in `word_tokens`.
     */
    spec_tensor word_offsets;
    /**
     * `[word_tokens]`, i32: read, optional.
     * The tokens of the words, one word behind the other.
     */
    spec_tensor word_tokens;
    /**
     * `[requests]`, i32: read, optional.
     * The length of n-grams that each request may not repeat; 0 or less for none.
     */
    spec_tensor no_repeat_ngram;
    /**
     * `[1]`, u32: changed in place, optional.
     * Bits for bad data, OR-ed into the previous value; only the caller clears them. 2: a
     * token is outside the vocabulary and was skipped; a forced token is, and becomes -1. 4: a
     * request, a length, a parent, an offset or a penalty is out of range, and was cut or left
     * out.
     */
    spec_tensor flags;
    /**
     * `[requests]`, f32: read, optional.
     * The DRY penalty of each request for a sequence of the allowed length; 0 for none. Needs
     * `dry_base` and `dry_allowed_length`.
     */
    spec_tensor dry_multiplier;
    /**
     * `[requests]`, f32: read, optional.
     * The factor of the DRY penalty for each further token of the repeated sequence; at least 1.
     */
    spec_tensor dry_base;
    /**
     * `[requests]`, i32: read, optional.
     * The length of a repeated sequence from which on DRY penalises the token behind it.
     */
    spec_tensor dry_allowed_length;
    /**
     * `[requests]`, i32: read, optional.
     * How many of the last tokens of each text DRY reads; 0 or less for all.
     */
    spec_tensor dry_range;
    /**
     * `[breakers]`, i32: read, optional.
     * Tokens that end a sequence and that DRY never penalises, for all requests.
     */
    spec_tensor dry_breakers;
    /**
     * `[requests]`, i32: read, optional.
     * How many tokens each request may think; below 0 for no limit. Needs `think_start`,
     * `think_end` and `think_forced`.
     */
    spec_tensor think_budget;
    /**
     * `[start_tokens]`, i32: read, optional.
     * The tokens that begin a thinking, at most 1,024; none where thinking begins behind the
     * prompt.
     */
    spec_tensor think_start;
    /**
     * `[end_tokens]`, i32: read, optional.
     * The tokens that end a thinking, at most 1,024.
     */
    spec_tensor think_end;
    /**
     * `[forced_tokens]`, i32: read, optional.
     * The tokens that a request must take, one after the other, once its budget is used; at
     * most 1,024.
     */
    spec_tensor think_forced;
    /**
     * `[rows]`, i32: written, optional.
     * The token of `think_forced` that each row must take; -1 for none. Needs `think_budget`.
     */
    spec_tensor forced;
} spec_adjust_logits_tensors;

/**
 * The memory of the tensors that spec_adjust_logits_tensors describes.
 */
typedef struct {
    /**
     * sizeof(spec_adjust_logits_buffers).
     */
    size_t size;
    void *logits;
    const void *tokens;
    const void *prompt_lengths;
    const void *lengths;
    const void *requests;
    const void *draft_tokens;
    const void *parents;
    const void *bias_offsets;
    const void *bias_tokens;
    const void *bias_values;
    const void *repetition;
    const void *frequency;
    const void *presence;
    const void *min_tokens;
    const void *stop_tokens;
    const void *bad_offsets;
    const void *word_offsets;
    const void *word_tokens;
    const void *no_repeat_ngram;
    void *flags;
    const void *dry_multiplier;
    const void *dry_base;
    const void *dry_allowed_length;
    const void *dry_range;
    const void *dry_breakers;
    const void *think_budget;
    const void *think_start;
    const void *think_end;
    const void *think_forced;
    void *forced;
} spec_adjust_logits_buffers;

/**
 * Adjusts logits in place by bias, penalties and tokens that may not come next, also where
 * rows are drafts.
 *
 * Creates the operator for these tensors on the handle's device: checks everything
 * that they and the parameters can show. `descriptor` becomes yours, to be given to
 * `spec_destroy`, or NULL where the call fails.
 *
 * - `logits` `[rows, columns]`, f32 or f16 or bf16: changed in place.
 * - `tokens` `[requests, max_len]`, i64 or i32: read.
 * - `prompt_lengths` `[requests]`, i32 or i64: read.
 * - `lengths` `[requests]`, i32 or i64: read.
 * - `requests` `[rows]`, i32: read, optional.
 * - `draft_tokens` `[rows]`, i64 or i32: read, optional.
 * - `parents` `[rows]`, i32: read, optional.
 * - `bias_offsets` `[requests + 1]`, i32: read, optional.
 * - `bias_tokens` `[biases]`, i32: read, optional.
 * - `bias_values` `[biases]`, f32: read, optional.
 * - `repetition` `[requests]`, f32: read, optional.
 * - `frequency` `[requests]`, f32: read, optional.
 * - `presence` `[requests]`, f32: read, optional.
 * - `dry_multiplier` `[requests]`, f32: read, optional.
 * - `dry_base` `[requests]`, f32: read, optional.
 * - `dry_allowed_length` `[requests]`, i32: read, optional.
 * - `dry_range` `[requests]`, i32: read, optional.
 * - `dry_breakers` `[breakers]`, i32: read, optional.
 * - `min_tokens` `[requests]`, i32: read, optional.
 * - `stop_tokens` `[requests, stops]`, i32: read, optional.
 * - `bad_offsets` `[requests + 1]`, i32: read, optional.
 * - `word_offsets` `[words + 1]`, i32: read, optional.
 * - `word_tokens` `[word_tokens]`, i32: read, optional.
 * - `no_repeat_ngram` `[requests]`, i32: read, optional.
 * - `think_budget` `[requests]`, i32: read, optional.
 * - `think_start` `[start_tokens]`, i32: read, optional.
 * - `think_end` `[end_tokens]`, i32: read, optional.
 * - `think_forced` `[forced_tokens]`, i32: read, optional.
 * - `forced` `[rows]`, i32: written, optional.
 * - `flags` `[1]`, u32: changed in place, optional.
 *
 * # Errors
 * Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the backend
 * lacks it, 1 or 8 where the device cannot run it.
 *
 * # Safety
 * `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is a
 * place.
 */
spec_status spec_adjust_logits_create(const spec_handle *handle,
                                      const spec_adjust_logits_params *params,
                                      const spec_adjust_logits_tensors *tensors,
                                      spec_descriptor **descriptor);

/**
 * Sets the parameters of adjust_logits to their defaults, and those that a caller must give
 * to 0.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a `size` that is none.
 *
 * # Safety
 * `params` has its `size` set.
 */
spec_status spec_adjust_logits_defaults(spec_adjust_logits_params *params);

/**
 * Enqueues adjust_logits on `stream`, and does nothing else.
 *
 * # Errors
 * Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not aligned,
 * 13 for a workspace that is too small, 1 where the device refuses. Bad values in the
 * data are no errors: they set `flags`.
 *
 * # Safety
 * `descriptor` is from `spec_adjust_logits_create`, `workspace` has `workspace_size` bytes,
 * and each buffer as many elements as its tensor spans, until the work is done.
 */
spec_status spec_adjust_logits_calculate(const spec_descriptor *descriptor,
                                         void *workspace,
                                         size_t workspace_size,
                                         const spec_adjust_logits_buffers *buffers,
                                         void *stream);

/**
 * The parameters of sample_logits.
 */
typedef struct {
    /**
     * sizeof(spec_sample_logits_params).
     */
    size_t size;
    /**
     * Whether `min_p` drops tokens before `top_k` and `top_p` count them, as
     * in vLLM, or after, as in transformers.
     * 1 for yes, 0 for no.
     * Default: false.
     */
    uint64_t min_p_first;
    /**
     * The token that column 0 stands for; column `c` stands for `first_token + c`.
     * Default: 0.
     */
    int64_t first_token;
} spec_sample_logits_params;

/**
 * Descriptors of the arguments of sample_logits.
 */
typedef struct {
    /**
     * sizeof(spec_sample_logits_tensors).
     */
    size_t size;
    /**
     * `[rows, vocab]`, f32 or f16 or bf16: read.
     * Logits, as the model gives them.
     */
    spec_tensor logits;
    /**
     * `[rows]`, i64 or i32: read.
     * The position in its own text of the token that each row decides; the
     * first token of a prompt has position 0.
     */
    spec_tensor positions;
    /**
     * `[requests]`, f32: read.
     * The temperature of each request; 0 takes the likeliest token. Cut to
     * 2^-100 .. 2^100.
     */
    spec_tensor temperature;
    /**
     * `[requests]`, u64: read.
     * The seed of each request's random numbers.
     */
    spec_tensor seeds;
    /**
     * `[requests]`, i32: read, optional.
     * How many of the likeliest tokens each request keeps; 0 or less, or
     * more than the vocabulary has, keeps all.
     */
    spec_tensor top_k;
    /**
     * `[requests]`, f32: read, optional.
     * The share of probability that the kept tokens must reach, the likeliest first; 1 or
     * more keeps all, 0 or less keeps only the likeliest.
     */
    spec_tensor top_p;
    /**
     * `[requests]`, f32: read, optional.
     * The share of the likeliest token's probability below which tokens are
     * dropped; 0 or less drops none.
     */
    spec_tensor min_p;
    /**
     * `[rows]`, i32 or u32 or i64: read, optional.
     * The request of each row; -1: padding. Absent: row r is request r.
     */
    spec_tensor requests;
    /**
     * `[rows, words]`, i32: read, optional.
     * Bit `v % 32` of word `v / 32` is set where a row may choose token `v`. Logits that are
     * wider than the tokenizer's vocabulary, as those of a padded vocabulary are, need a mask
     * without the bits of the columns that stand for no token, or a shape without the columns.
     */
    spec_tensor mask;
    /**
     * `[rows] or [rows, n]`, i32 or u32 or i64: written.
     * The tokens chosen: one for each row, or the first `n`, at most 64, in the order in
     * which they finish, then -1. None, `[rows, 0]`, with `largest`.
     */
    spec_tensor tokens;
    /**
     * `[rows, vocab]`, f32: written, optional.
     * The distribution that each row's tokens were drawn from, exact to the bit; where no
     * token was drawn, 1 at the token that was chosen and 0 elsewhere.
     */
    spec_tensor probs;
    /**
     * `[rows] or [rows, n]`, f32: written, optional.
     * The natural logarithm of each token's probability by the logits as given,
     * without temperature, mask and filters.
     */
    spec_tensor logprobs;
    /**
     * `[1]`, u32: changed in place, optional.
     * Bits for bad data, OR-ed into the previous value; only the caller clears them. 1: a
     * logit is NaN or positive infinity, or a row has no token to choose. 2: an id of
     * `token_ids` is neither a token nor -1 and counts as none, or a forced token is not
     * there. 4: a temperature is negative or NaN, a request is out of range, `top_p` or
     * `min_p` is NaN, or one of `maxima` cannot be the largest logit.
     */
    spec_tensor flags;
    /**
     * `[rows] or [rows, n]`, f32: written, optional.
     * The natural logarithm of each token's share of the distribution that it was drawn from.
     */
    spec_tensor processed_logprobs;
    /**
     * `[rows] or [rows, n]`, i32: written, optional.
     * How many logits of the row, as given, are at least as large as each token's; 1 for the
     * largest.
     */
    spec_tensor ranks;
    /**
     * `[rows, top]`, i32: written, optional.
     * The likeliest tokens of each row by the logits as given, at most 256, the likeliest
     * first; -1 where the vocabulary has fewer.
     */
    spec_tensor top_tokens;
    /**
     * `[rows, top]`, f32: written, optional.
     * The natural logarithm of the probability of each of `top_tokens`, as in `logprobs`.
     */
    spec_tensor top_logprobs;
    /**
     * `[rows]`, u32: written, optional.
     * The bits of `flags` that each row has set, 0 for a row without bad data; written, not
     * OR-ed.
     */
    spec_tensor row_flags;
    /**
     * `[vocab] or [rows, vocab]`, i32 or i64: read, optional.
     * The token that each column stands for, of all rows or of each; -1: none.
     */
    spec_tensor token_ids;
    /**
     * `[rows]`, f32: read, optional.
     * The largest logit of each row among the columns of all ranks, `largest` of the ranks
     * after an all-reduce MAX.
     */
    spec_tensor maxima;
    /**
     * `[rows]`, i32: read, optional.
     * A token that each row takes instead of a drawn one; -1: none.
     */
    spec_tensor forced;
    /**
     * `[rows]`, i64 or u64: written, optional.
     * The time of each row's token and the token, as a number whose minimum over the ranks is
     * that of the whole row: `place << 32 | token`.
     */
    spec_tensor winners;
    /**
     * `[rows, kept]`, i32: written, optional.
     * The tokens of each row that race, at most 4096, in the order of their columns, then -1.
     */
    spec_tensor kept_tokens;
    /**
     * `[rows]`, i32: written, optional.
     * How many tokens of each row race.
     */
    spec_tensor kept_counts;
    /**
     * `[rows]`, f32: written, optional.
     * The largest logit of each row that the mask allows. A call with this output draws no
     * token and has no other output.
     */
    spec_tensor largest;
} spec_sample_logits_tensors;

/**
 * The memory of the tensors that spec_sample_logits_tensors describes.
 */
typedef struct {
    /**
     * sizeof(spec_sample_logits_buffers).
     */
    size_t size;
    const void *logits;
    const void *positions;
    const void *temperature;
    const void *seeds;
    const void *top_k;
    const void *top_p;
    const void *min_p;
    const void *requests;
    const void *mask;
    void *tokens;
    void *probs;
    void *logprobs;
    void *flags;
    void *processed_logprobs;
    void *ranks;
    void *top_tokens;
    void *top_logprobs;
    void *row_flags;
    const void *token_ids;
    const void *maxima;
    const void *forced;
    void *winners;
    void *kept_tokens;
    void *kept_counts;
    void *largest;
} spec_sample_logits_buffers;

/**
 * Samples tokens from logits: temperature, top-k, top-p, min-p, an allowed-token mask and a
 * seed for each request.
 *
 * Creates the operator for these tensors on the handle's device: checks everything
 * that they and the parameters can show. `descriptor` becomes yours, to be given to
 * `spec_destroy`, or NULL where the call fails.
 *
 * - `logits` `[rows, vocab]`, f32 or f16 or bf16: read.
 * - `positions` `[rows]`, i64 or i32: read.
 * - `temperature` `[requests]`, f32: read.
 * - `seeds` `[requests]`, u64: read.
 * - `top_k` `[requests]`, i32: read, optional.
 * - `top_p` `[requests]`, f32: read, optional.
 * - `min_p` `[requests]`, f32: read, optional.
 * - `requests` `[rows]`, i32 or u32 or i64: read, optional.
 * - `mask` `[rows, words]`, i32: read, optional.
 * - `token_ids` `[vocab] or [rows, vocab]`, i32 or i64: read, optional.
 * - `maxima` `[rows]`, f32: read, optional.
 * - `forced` `[rows]`, i32: read, optional.
 * - `tokens` `[rows] or [rows, n]`, i32 or u32 or i64: written.
 * - `probs` `[rows, vocab]`, f32: written, optional.
 * - `logprobs` `[rows] or [rows, n]`, f32: written, optional.
 * - `processed_logprobs` `[rows] or [rows, n]`, f32: written, optional.
 * - `ranks` `[rows] or [rows, n]`, i32: written, optional.
 * - `top_tokens` `[rows, top]`, i32: written, optional.
 * - `top_logprobs` `[rows, top]`, f32: written, optional.
 * - `row_flags` `[rows]`, u32: written, optional.
 * - `winners` `[rows]`, i64 or u64: written, optional.
 * - `kept_tokens` `[rows, kept]`, i32: written, optional.
 * - `kept_counts` `[rows]`, i32: written, optional.
 * - `largest` `[rows]`, f32: written, optional.
 * - `flags` `[1]`, u32: changed in place, optional.
 *
 * # Errors
 * Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the backend
 * lacks it, 1 or 8 where the device cannot run it.
 *
 * # Safety
 * `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is a
 * place.
 */
spec_status spec_sample_logits_create(const spec_handle *handle,
                                      const spec_sample_logits_params *params,
                                      const spec_sample_logits_tensors *tensors,
                                      spec_descriptor **descriptor);

/**
 * Sets the parameters of sample_logits to their defaults, and those that a caller must give
 * to 0.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a `size` that is none.
 *
 * # Safety
 * `params` has its `size` set.
 */
spec_status spec_sample_logits_defaults(spec_sample_logits_params *params);

/**
 * Enqueues sample_logits on `stream`, and does nothing else.
 *
 * # Errors
 * Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not aligned,
 * 13 for a workspace that is too small, 1 where the device refuses. Bad values in the
 * data are no errors: they set `flags`.
 *
 * # Safety
 * `descriptor` is from `spec_sample_logits_create`, `workspace` has `workspace_size` bytes,
 * and each buffer as many elements as its tensor spans, until the work is done.
 */
spec_status spec_sample_logits_calculate(const spec_descriptor *descriptor,
                                         void *workspace,
                                         size_t workspace_size,
                                         const spec_sample_logits_buffers *buffers,
                                         void *stream);

/**
 * The parameters of ngram_match.
 */
typedef struct {
    /**
     * sizeof(spec_ngram_match_params).
     */
    size_t size;
    /**
     * The longest pattern, 1 to 1024.
     * Default: 3.
     */
    size_t max_ngram_size;
    /**
     * The token budget of one step, over all requests.
     * Default: 128.
     */
    int64_t token_threshold;
} spec_ngram_match_params;

/**
 * Descriptors of the arguments of ngram_match.
 */
typedef struct {
    /**
     * sizeof(spec_ngram_match_tensors).
     */
    size_t size;
    /**
     * `[batch, max_prompt_len]`, i64 or i32 or u32: read.
     * The prompts, which are searched first.
     */
    spec_tensor input_ids;
    /**
     * `[batch] or [batch, 1]`, i64 or i32: read.
     * The number of tokens in each prompt, the same at every step; 0 for a prompt that is not
     * to be searched.
     */
    spec_tensor input_ids_len;
    /**
     * `[batch, max_model_len]`, i64 or i32 or u32: read.
     * The rows of generated tokens, which start at index `prompt_lens`. Tokens before that
     * index are not read.
     */
    spec_tensor token_ids_all;
    /**
     * `[batch] or [batch, 1]`, i64 or i32: read.
     * The index in the row where the generated tokens start. Where the prompt lies before
     * them, this is the prompt's length, or one less: then the prompt's last token counts as
     * generated, and the first step can draft. The same at every step.
     */
    spec_tensor prompt_lens;
    /**
     * `[batch] or [batch, 1]`, i64 or i32: read.
     * The index of the last generated token, counted from `prompt_lens`, which is the number
     * of generated tokens minus 1. It is 0 at a request's first step, where one token was
     * generated. Nothing is drafted where it is below 1.
     */
    spec_tensor step_idx;
    /**
     * `[batch] or [batch, 1]`, i32: read.
     * The largest number of drafts of each request; 0 or less for none.
     */
    spec_tensor draft_token_num;
    /**
     * `[batch, max_draft_len]`, i64 or i32 or u32: changed in place.
     * The tokens that the model is run on next. Slot 0 is the last generated token: the caller
     * writes it, and the operator neither reads nor changes it. Drafts are written from slot 1
     * on, and the slots behind the last draft keep their values.
     */
    spec_tensor draft_tokens;
    /**
     * `[batch] or [batch, 1]`, i32: changed in place.
     * The number of tokens of this step. It becomes 1 plus the number of drafts for a request
     * that decodes, and 0 for an idle slot. It is read only for a request that is being
     * encoded, whose tokens count against the budget.
     */
    spec_tensor seq_lens_this_time;
    /**
     * `[batch] or [batch, 1]`, i32: read.
     * The number of prompt tokens that are being encoded in this step; 0 from a request's
     * first decoding step on.
     */
    spec_tensor seq_lens_encoder;
    /**
     * `[batch] or [batch, 1]`, i32: read.
     * The number of tokens in the cache; at a request's first decoding step, the number of
     * tokens of the prompt. 0 for a slot without a request, which drafts nothing.
     */
    spec_tensor seq_lens_decoder;
    /**
     * `[batch] or [batch, 1]`, i64 or i32: read.
     * The largest number of tokens to generate over all steps; no draft passes it.
     */
    spec_tensor max_dec_len;
    /**
     * `[1]`, u32: changed in place, optional.
     * Bits for bad data, OR-ed into the previous value; only the caller clears them. 4: a
     * length or a step is out of range, or drafts would leave their row; it was cut.
     */
    spec_tensor flags;
} spec_ngram_match_tensors;

/**
 * The memory of the tensors that spec_ngram_match_tensors describes.
 */
typedef struct {
    /**
     * sizeof(spec_ngram_match_buffers).
     */
    size_t size;
    const void *input_ids;
    const void *input_ids_len;
    const void *token_ids_all;
    const void *prompt_lens;
    const void *step_idx;
    const void *draft_token_num;
    void *draft_tokens;
    void *seq_lens_this_time;
    const void *seq_lens_encoder;
    const void *seq_lens_decoder;
    const void *max_dec_len;
    void *flags;
} spec_ngram_match_buffers;

/**
 * Drafts tokens by copying those that followed an earlier occurrence of the last tokens.
 *
 * Creates the operator for these tensors on the handle's device: checks everything
 * that they and the parameters can show. `descriptor` becomes yours, to be given to
 * `spec_destroy`, or NULL where the call fails.
 *
 * - `input_ids` `[batch, max_prompt_len]`, i64 or i32 or u32: read.
 * - `input_ids_len` `[batch] or [batch, 1]`, i64 or i32: read.
 * - `token_ids_all` `[batch, max_model_len]`, i64 or i32 or u32: read.
 * - `prompt_lens` `[batch] or [batch, 1]`, i64 or i32: read.
 * - `step_idx` `[batch] or [batch, 1]`, i64 or i32: read.
 * - `draft_token_num` `[batch] or [batch, 1]`, i32: read.
 * - `draft_tokens` `[batch, max_draft_len]`, i64 or i32 or u32: changed in place.
 * - `seq_lens_this_time` `[batch] or [batch, 1]`, i32: changed in place.
 * - `seq_lens_encoder` `[batch] or [batch, 1]`, i32: read.
 * - `seq_lens_decoder` `[batch] or [batch, 1]`, i32: read.
 * - `max_dec_len` `[batch] or [batch, 1]`, i64 or i32: read.
 * - `flags` `[1]`, u32: changed in place, optional.
 *
 * # Errors
 * Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the backend
 * lacks it, 1 or 8 where the device cannot run it.
 *
 * # Safety
 * `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is a
 * place.
 */
spec_status spec_ngram_match_create(const spec_handle *handle,
                                    const spec_ngram_match_params *params,
                                    const spec_ngram_match_tensors *tensors,
                                    spec_descriptor **descriptor);

/**
 * Sets the parameters of ngram_match to their defaults, and those that a caller must give
 * to 0.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a `size` that is none.
 *
 * # Safety
 * `params` has its `size` set.
 */
spec_status spec_ngram_match_defaults(spec_ngram_match_params *params);

/**
 * Enqueues ngram_match on `stream`, and does nothing else.
 *
 * # Errors
 * Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not aligned,
 * 13 for a workspace that is too small, 1 where the device refuses. Bad values in the
 * data are no errors: they set `flags`.
 *
 * # Safety
 * `descriptor` is from `spec_ngram_match_create`, `workspace` has `workspace_size` bytes,
 * and each buffer as many elements as its tensor spans, until the work is done.
 */
spec_status spec_ngram_match_calculate(const spec_descriptor *descriptor,
                                       void *workspace,
                                       size_t workspace_size,
                                       const spec_ngram_match_buffers *buffers,
                                       void *stream);

/**
 * The parameters of hybrid_mtp_ngram.
 */
typedef struct {
    /**
     * sizeof(spec_hybrid_mtp_ngram_params).
     */
    size_t size;
    /**
     * The longest pattern, 1 to 1024.
     * Default: 3.
     */
    size_t max_ngram_size;
    /**
     * The shortest pattern.
     * Default: 1.
     */
    size_t min_ngram_size;
    /**
     * The largest number of drafts of a request, those of the head included.
     * It has no default.
     */
    size_t max_draft_tokens;
    /**
     * The token budget of one step, over all requests.
     * Default: 128.
     */
    int64_t token_threshold;
} spec_hybrid_mtp_ngram_params;

/**
 * Descriptors of the arguments of hybrid_mtp_ngram.
 */
typedef struct {
    /**
     * sizeof(spec_hybrid_mtp_ngram_tensors).
     */
    size_t size;
    /**
     * `[batch, max_prompt_len]`, i64 or i32 or u32: read.
     * The prompts, which are searched first.
     */
    spec_tensor input_ids;
    /**
     * `[batch] or [batch, 1]`, i64 or i32: read.
     * The number of tokens in each prompt, the same at every step; 0 for a prompt that is not
     * to be searched.
     */
    spec_tensor input_ids_len;
    /**
     * `[batch, max_model_len]`, i64 or i32 or u32: read.
     * Generated tokens from the start of the row on, without the prompt, except that engines
     * store the prompt's last token in slot 0. If matching is to go on behind the drafts of
     * the head, these drafts follow.
     */
    spec_tensor pre_ids;
    /**
     * `[batch] or [batch, 1]`, i64 or i32: read.
     * The index in `pre_ids` of the last token of the pattern. With the prompt's last token in
     * slot 0, the index is 1 at a request's first step. Nothing is drafted where the index is
     * below `min_ngram_size`.
     */
    spec_tensor step_idx;
    /**
     * `[batch, max_draft_len]`, i64 or i32 or u32: changed in place.
     * The tokens that the model is run on next. Slot 0 is the last generated token, and
     * slots 1 to `have - 1` are the head's drafts. The caller writes these slots; the operator
     * neither reads nor changes them, and writes its own drafts from slot `have` on.
     */
    spec_tensor draft_tokens;
    /**
     * `[batch] or [batch, 1]`, i32: changed in place.
     * `have`, the number of tokens of this step so far: 1 plus the number of the head's
     * drafts. The operator adds the number of its own drafts. 0 for a request that is not part
     * of the step.
     */
    spec_tensor seq_lens_this_time;
    /**
     * `[batch] or [batch, 1]`, i32: read.
     * The number of tokens in the cache; at a request's first decoding step, the number of
     * tokens of the prompt. The budget keeps a token only for requests where it is above 0.
     */
    spec_tensor seq_lens_decoder;
    /**
     * `[batch] or [batch, 1]`, i64 or i32: read.
     * The largest number of tokens to generate over all steps; no draft passes it.
     */
    spec_tensor max_dec_len;
    /**
     * `[1]`, u32: changed in place, optional.
     * Bits for bad data, OR-ed into the previous value; only the caller clears them. 4: a
     * length or a step is out of range, or drafts would leave their row; it was cut.
     */
    spec_tensor flags;
} spec_hybrid_mtp_ngram_tensors;

/**
 * The memory of the tensors that spec_hybrid_mtp_ngram_tensors describes.
 */
typedef struct {
    /**
     * sizeof(spec_hybrid_mtp_ngram_buffers).
     */
    size_t size;
    const void *input_ids;
    const void *input_ids_len;
    const void *pre_ids;
    const void *step_idx;
    void *draft_tokens;
    void *seq_lens_this_time;
    const void *seq_lens_decoder;
    const void *max_dec_len;
    void *flags;
} spec_hybrid_mtp_ngram_buffers;

/**
 * Extends the drafts of a multi-token-prediction head by n-gram matching.
 *
 * Creates the operator for these tensors on the handle's device: checks everything
 * that they and the parameters can show. `descriptor` becomes yours, to be given to
 * `spec_destroy`, or NULL where the call fails.
 *
 * - `input_ids` `[batch, max_prompt_len]`, i64 or i32 or u32: read.
 * - `input_ids_len` `[batch] or [batch, 1]`, i64 or i32: read.
 * - `pre_ids` `[batch, max_model_len]`, i64 or i32 or u32: read.
 * - `step_idx` `[batch] or [batch, 1]`, i64 or i32: read.
 * - `draft_tokens` `[batch, max_draft_len]`, i64 or i32 or u32: changed in place.
 * - `seq_lens_this_time` `[batch] or [batch, 1]`, i32: changed in place.
 * - `seq_lens_decoder` `[batch] or [batch, 1]`, i32: read.
 * - `max_dec_len` `[batch] or [batch, 1]`, i64 or i32: read.
 * - `flags` `[1]`, u32: changed in place, optional.
 *
 * # Errors
 * Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the backend
 * lacks it, 1 or 8 where the device cannot run it.
 *
 * # Safety
 * `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is a
 * place.
 */
spec_status spec_hybrid_mtp_ngram_create(const spec_handle *handle,
                                         const spec_hybrid_mtp_ngram_params *params,
                                         const spec_hybrid_mtp_ngram_tensors *tensors,
                                         spec_descriptor **descriptor);

/**
 * Sets the parameters of hybrid_mtp_ngram to their defaults, and those that a caller must give
 * to 0.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a `size` that is none.
 *
 * # Safety
 * `params` has its `size` set.
 */
spec_status spec_hybrid_mtp_ngram_defaults(spec_hybrid_mtp_ngram_params *params);

/**
 * Enqueues hybrid_mtp_ngram on `stream`, and does nothing else.
 *
 * # Errors
 * Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not aligned,
 * 13 for a workspace that is too small, 1 where the device refuses. Bad values in the
 * data are no errors: they set `flags`.
 *
 * # Safety
 * `descriptor` is from `spec_hybrid_mtp_ngram_create`, `workspace` has `workspace_size` bytes,
 * and each buffer as many elements as its tensor spans, until the work is done.
 */
spec_status spec_hybrid_mtp_ngram_calculate(const spec_descriptor *descriptor,
                                            void *workspace,
                                            size_t workspace_size,
                                            const spec_hybrid_mtp_ngram_buffers *buffers,
                                            void *stream);

/**
 * The parameters of prompt_lookup.
 */
typedef struct {
    /**
     * sizeof(spec_prompt_lookup_params).
     */
    size_t size;
    /**
     * The shortest pattern, at least 1. Patterns of 1 token mostly match by chance.
     * Default: 2.
     */
    size_t min_ngram;
    /**
     * The longest pattern, `min_ngram` to 1024.
     * Default: 5.
     */
    size_t max_ngram;
    /**
     * The largest number of drafts of a request, which is also the number of columns of
     * `drafts`.
     * Default: 5.
     */
    size_t max_draft;
    /**
     * Which occurrence drafts are copied from.
     * SPEC_OCCURRENCE_FIRST or SPEC_OCCURRENCE_LAST.
     * Default: SPEC_OCCURRENCE_LAST.
     */
    uint64_t occurrence;
    /**
     * Whether the text's last token stands behind the drafts, instead of -1. A row whose text
     * has no tokens has -1 in all columns.
     * 1 for yes, 0 for no.
     * Default: false.
     */
    uint64_t pad_with_last;
} spec_prompt_lookup_params;

/**
 * Descriptors of the arguments of prompt_lookup.
 */
typedef struct {
    /**
     * sizeof(spec_prompt_lookup_tensors).
     */
    size_t size;
    /**
     * `[slots, max_len]`, i64 or i32 or u32: read.
     * The text of each request: its prompt, then every token generated so
     * far, the last one included. Tokens behind `lengths` are not read.
     */
    spec_tensor tokens;
    /**
     * `[slots] or [slots, 1]`, i32 or i64: read.
     * How many tokens each text has. At a request's first step this is the number of tokens of
     * the prompt, or one more if the token that the prefill generated is already in the text.
     */
    spec_tensor lengths;
    /**
     * `[batch, max_draft]`, i64 or i32 or u32: written.
     * The drafts, then -1 (the largest value in u32) or the text's last token to the row's
     * end. Of the type of `tokens`; for tokens of 32 bits also i64.
     */
    spec_tensor drafts;
    /**
     * `[batch] or [batch, 1]`, i32: written.
     * The number of drafts of each request, 0 to `max_draft`.
     */
    spec_tensor counts;
    /**
     * `[1]`, u32: changed in place, optional.
     * Bits for bad data, OR-ed into the previous value; only the caller clears them. 4: a
     * length is out of range and was cut, or a request has no row of `tokens` and no drafts.
     */
    spec_tensor flags;
    /**
     * `[batch]`, i32 or u32 or i64: read, optional.
     * The row of `tokens` and `lengths` that each request has; -1 for padding. Absent:
     * request b has row b.
     */
    spec_tensor requests;
    /**
     * `[batch]`, i32: read, optional.
     * The largest number of drafts of each request, cut to `0 ..= max_draft`. Absent:
     * `max_draft`.
     */
    spec_tensor max_drafts;
} spec_prompt_lookup_tensors;

/**
 * The memory of the tensors that spec_prompt_lookup_tensors describes.
 */
typedef struct {
    /**
     * sizeof(spec_prompt_lookup_buffers).
     */
    size_t size;
    const void *tokens;
    const void *lengths;
    void *drafts;
    void *counts;
    void *flags;
    const void *requests;
    const void *max_drafts;
} spec_prompt_lookup_buffers;

/**
 * Drafts from a request's own text, by copying the tokens that followed an earlier occurrence
 * of its last tokens.
 *
 * Creates the operator for these tensors on the handle's device: checks everything
 * that they and the parameters can show. `descriptor` becomes yours, to be given to
 * `spec_destroy`, or NULL where the call fails.
 *
 * - `tokens` `[slots, max_len]`, i64 or i32 or u32: read.
 * - `lengths` `[slots] or [slots, 1]`, i32 or i64: read.
 * - `requests` `[batch]`, i32 or u32 or i64: read, optional.
 * - `max_drafts` `[batch]`, i32: read, optional.
 * - `drafts` `[batch, max_draft]`, i64 or i32 or u32: written.
 * - `counts` `[batch] or [batch, 1]`, i32: written.
 * - `flags` `[1]`, u32: changed in place, optional.
 *
 * # Errors
 * Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the backend
 * lacks it, 1 or 8 where the device cannot run it.
 *
 * # Safety
 * `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is a
 * place.
 */
spec_status spec_prompt_lookup_create(const spec_handle *handle,
                                      const spec_prompt_lookup_params *params,
                                      const spec_prompt_lookup_tensors *tensors,
                                      spec_descriptor **descriptor);

/**
 * Sets the parameters of prompt_lookup to their defaults, and those that a caller must give
 * to 0.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a `size` that is none.
 *
 * # Safety
 * `params` has its `size` set.
 */
spec_status spec_prompt_lookup_defaults(spec_prompt_lookup_params *params);

/**
 * Enqueues prompt_lookup on `stream`, and does nothing else.
 *
 * # Errors
 * Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not aligned,
 * 13 for a workspace that is too small, 1 where the device refuses. Bad values in the
 * data are no errors: they set `flags`.
 *
 * # Safety
 * `descriptor` is from `spec_prompt_lookup_create`, `workspace` has `workspace_size` bytes,
 * and each buffer as many elements as its tensor spans, until the work is done.
 */
spec_status spec_prompt_lookup_calculate(const spec_descriptor *descriptor,
                                         void *workspace,
                                         size_t workspace_size,
                                         const spec_prompt_lookup_buffers *buffers,
                                         void *stream);

/**
 * The parameters of suffix_lookup.
 */
typedef struct {
    /**
     * sizeof(spec_suffix_lookup_params).
     */
    size_t size;
    /**
     * The shortest match that gives drafts, at least 1.
     * Default: 1.
     */
    size_t min_match;
    /**
     * The longest match that counts, `min_match` to 64; a longer match counts as this long.
     * Default: 16.
     */
    size_t max_match;
    /**
     * The largest number of windows that count, 1 to 1024.
     * Default: 64.
     */
    size_t max_windows;
    /**
     * How many children a node may have; 1 makes chains.
     * Default: 1.
     */
    size_t width;
    /**
     * The smallest share of all windows that a draft needs, 0 to 1.
     * Default: 0.
     */
    double min_share;
    /**
     * The largest depth of a draft for each token of the match, at least 0. The default does
     * not limit anything, since there are at most 64 drafts.
     * Default: 64.
     */
    double drafts_per_match;
    /**
     * Whether the text's last token stands behind the drafts, instead of -1. A row whose text
     * has no tokens has -1 in all columns.
     * 1 for yes, 0 for no.
     * Default: false.
     */
    uint64_t pad_with_last;
} spec_suffix_lookup_params;

/**
 * Descriptors of the arguments of suffix_lookup.
 */
typedef struct {
    /**
     * sizeof(spec_suffix_lookup_tensors).
     */
    size_t size;
    /**
     * `[slots, max_len]`, i64 or i32 or u32: read.
     * The text of each request: its prompt, then every token generated so far. Tokens behind
     * `lengths` are not read.
     */
    spec_tensor tokens;
    /**
     * `[slots] or [slots, 1]`, i32 or i64: read.
     * How many tokens each text has.
     */
    spec_tensor lengths;
    /**
     * `[m]`, i64 or i32 or u32: read, optional.
     * Texts of other requests, of the type of `tokens`, with a negative token between two
     * texts.
     */
    spec_tensor corpus;
    /**
     * `[1]`, i32 or i64: read, optional.
     * How many tokens of `corpus` are searched; absent: all.
     */
    spec_tensor corpus_length;
    /**
     * `[batch, n]`, i64 or i32 or u32: written.
     * The drafts, then -1 (the largest value in u32) or the text's last token. Of the type of
     * `tokens`; for tokens of 32 bits also i64.
     */
    spec_tensor drafts;
    /**
     * `[batch] or [batch, 1]`, i32: written.
     * The number of drafts of each request.
     */
    spec_tensor counts;
    /**
     * `[batch, n]`, i32: written, optional.
     * The node that each draft follows: 0 for the text's last token, i for draft i - 1; then
     * -1.
     */
    spec_tensor parents;
    /**
     * `[batch, n + 1]`, i32: written, optional.
     * The first child of each node; -1 for none. Node 0 is the text's last token, and node i
     * is draft i - 1. `tree_verify` takes this argument.
     */
    spec_tensor first_child;
    /**
     * `[batch, n + 1]`, i32: written, optional.
     * The next child of the same parent; -1 for none. `tree_verify` takes this argument.
     */
    spec_tensor next_sibling;
    /**
     * `[batch, n]`, f32: written, optional.
     * The share of all windows that agree with the path to each draft, rounded down to a
     * multiple of 2^-20; then 0.
     */
    spec_tensor shares;
    /**
     * `[batch]`, i32: written, optional.
     * The length of the longest match, 0 where it is below `min_match`.
     */
    spec_tensor match_lengths;
    /**
     * `[1]`, u32: changed in place, optional.
     * Bits for bad data, OR-ed into the previous value; only the caller clears them. 4: a
     * length of a text or of the corpus is out of range and was cut, or a request has no row
     * of `tokens` and no drafts.
     */
    spec_tensor flags;
    /**
     * `[batch]`, i32 or u32 or i64: read, optional.
     * The row of `tokens` and `lengths` that each request has; -1 for padding. Absent:
     * request b has row b.
     */
    spec_tensor requests;
    /**
     * `[batch]`, i32: read, optional.
     * The largest number of drafts of each request, cut to `0 ..= n`. Absent: n.
     */
    spec_tensor max_drafts;
} spec_suffix_lookup_tensors;

/**
 * The memory of the tensors that spec_suffix_lookup_tensors describes.
 */
typedef struct {
    /**
     * sizeof(spec_suffix_lookup_buffers).
     */
    size_t size;
    const void *tokens;
    const void *lengths;
    const void *corpus;
    const void *corpus_length;
    void *drafts;
    void *counts;
    void *parents;
    void *first_child;
    void *next_sibling;
    void *shares;
    void *match_lengths;
    void *flags;
    const void *requests;
    const void *max_drafts;
} spec_suffix_lookup_buffers;

/**
 * Drafts from the longest suffix that occurred before, in a request's own text and in a shared
 * corpus, weighted by how often each continuation followed.
 *
 * Creates the operator for these tensors on the handle's device: checks everything
 * that they and the parameters can show. `descriptor` becomes yours, to be given to
 * `spec_destroy`, or NULL where the call fails.
 *
 * - `tokens` `[slots, max_len]`, i64 or i32 or u32: read.
 * - `lengths` `[slots] or [slots, 1]`, i32 or i64: read.
 * - `requests` `[batch]`, i32 or u32 or i64: read, optional.
 * - `max_drafts` `[batch]`, i32: read, optional.
 * - `corpus` `[m]`, i64 or i32 or u32: read, optional.
 * - `corpus_length` `[1]`, i32 or i64: read, optional.
 * - `drafts` `[batch, n]`, i64 or i32 or u32: written.
 * - `counts` `[batch] or [batch, 1]`, i32: written.
 * - `parents` `[batch, n]`, i32: written, optional.
 * - `first_child` `[batch, n + 1]`, i32: written, optional.
 * - `next_sibling` `[batch, n + 1]`, i32: written, optional.
 * - `shares` `[batch, n]`, f32: written, optional.
 * - `match_lengths` `[batch]`, i32: written, optional.
 * - `flags` `[1]`, u32: changed in place, optional.
 *
 * # Errors
 * Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the backend
 * lacks it, 1 or 8 where the device cannot run it.
 *
 * # Safety
 * `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is a
 * place.
 */
spec_status spec_suffix_lookup_create(const spec_handle *handle,
                                      const spec_suffix_lookup_params *params,
                                      const spec_suffix_lookup_tensors *tensors,
                                      spec_descriptor **descriptor);

/**
 * Sets the parameters of suffix_lookup to their defaults, and those that a caller must give
 * to 0.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a `size` that is none.
 *
 * # Safety
 * `params` has its `size` set.
 */
spec_status spec_suffix_lookup_defaults(spec_suffix_lookup_params *params);

/**
 * Enqueues suffix_lookup on `stream`, and does nothing else.
 *
 * # Errors
 * Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not aligned,
 * 13 for a workspace that is too small, 1 where the device refuses. Bad values in the
 * data are no errors: they set `flags`.
 *
 * # Safety
 * `descriptor` is from `spec_suffix_lookup_create`, `workspace` has `workspace_size` bytes,
 * and each buffer as many elements as its tensor spans, until the work is done.
 */
spec_status spec_suffix_lookup_calculate(const spec_descriptor *descriptor,
                                         void *workspace,
                                         size_t workspace_size,
                                         const spec_suffix_lookup_buffers *buffers,
                                         void *stream);

/**
 * The parameters of draft_tree.
 */
typedef struct {
    /**
     * sizeof(spec_draft_tree_params).
     */
    size_t size;
    /**
     * The smallest survival of a draft, 0 to 1.
     * Default: 0.
     */
    double min_survival;
    /**
     * How many drafts of each request come before all others: they need no `min_survival`, and
     * the budget serves them first.
     * Default: 0.
     */
    size_t min_drafts;
    /**
     * Whether `shares` are probabilities of the whole way from the root, as `suffix_lookup`
     * gives them, not of each candidate given its parent.
     * 1 for yes, 0 for no.
     * Default: false.
     */
    uint64_t cumulative;
} spec_draft_tree_params;

/**
 * Descriptors of the arguments of draft_tree.
 */
typedef struct {
    /**
     * sizeof(spec_draft_tree_tensors).
     */
    size_t size;
    /**
     * `[batch, c]`, i64 or i32 or u32: read.
     * The tokens that may become drafts; a negative one is no candidate.
     */
    spec_tensor candidates;
    /**
     * `[batch, c]`, i32 or i64: read, optional.
     * What each candidate follows: 0 for the text's last token, i for candidate i - 1. Absent:
     * each candidate follows the one before it.
     */
    spec_tensor parents;
    /**
     * `[batch, c]`, f32: read, optional.
     * The probability of each candidate given its parent, or of the whole way to it with
     * `cumulative`. Absent: 1.
     */
    spec_tensor shares;
    /**
     * `[batch] or [batch, 1]`, i32 or i64: read, optional.
     * How many candidates each request has. Absent: c.
     */
    spec_tensor counts;
    /**
     * `[batch]`, f32: read, optional.
     * A factor for each step of depth, 0 to 1: an acceptance rate that was measured, or
     * match / (match + 1) of `suffix_lookup`'s `match_lengths`. Absent: 1.
     */
    spec_tensor trust;
    /**
     * `[batch]`, i32: read, optional.
     * Requests with a value other than 0 have no drafts and no rows.
     */
    spec_tensor finished;
    /**
     * `[1]`, i32: read, optional.
     * The largest number of drafts of all requests together. Absent: no limit.
     */
    spec_tensor budget;
    /**
     * `[batch]`, i64 or i32 or u32: read, optional.
     * The last token of each text, for `row_tokens`. Absent: -1.
     */
    spec_tensor roots;
    /**
     * `[batch] or [batch, 1]`, i32 or i64: read, optional.
     * The position of each request's node 0, for `row_positions`.
     */
    spec_tensor starts;
    /**
     * `[batch, n]`, i64 or i32 or u32: written.
     * The drafts, then -1 (the largest value in u32).
     */
    spec_tensor drafts;
    /**
     * `[batch]`, i32: written.
     * The number of drafts of each request.
     */
    spec_tensor num_drafts;
    /**
     * `[batch, n]`, i32: written, optional.
     * The candidate that each draft is; then -1.
     */
    spec_tensor picked;
    /**
     * `[batch, n]`, i32: written, optional.
     * The node that each draft follows: 0 for the text's last token, i for draft i - 1; then
     * -1.
     */
    spec_tensor draft_parents;
    /**
     * `[batch, n + 1]`, i32: written, optional.
     * The first child of each node; -1 for none. `tree_verify` takes this argument.
     */
    spec_tensor first_child;
    /**
     * `[batch, n + 1]`, i32: written, optional.
     * The next child of the same parent; -1 for none. `tree_verify` takes this argument.
     */
    spec_tensor next_sibling;
    /**
     * `[batch, n + 1]`, i32: written, optional.
     * The number of steps from node 0 to each node; then -1.
     */
    spec_tensor depths;
    /**
     * `[batch, n + 1, ceil((n + 1) / 32)]`, i32: written, optional.
     * The nodes that each node attends to: bit `v % 32` of word `v / 32` is set where node v is
     * on the way from node 0 to the node, both included. Behind the nodes: 0.
     */
    spec_tensor masks;
    /**
     * `[batch, n]`, f32: written, optional.
     * The survival of each draft; then 0.
     */
    spec_tensor survivals;
    /**
     * `[batch + 1]`, i32: written, optional.
     * Where the packed rows of each request begin, and where the last ones end. A request has
     * `num_drafts + 1` rows, or none if it has finished. `tree_verify` takes this argument.
     */
    spec_tensor row_offsets;
    /**
     * `[cap]`, i32: written, optional.
     * The node of each packed row, as request * (n + 1) + node; then -1.
     */
    spec_tensor rows;
    /**
     * `[cap]`, i32: written, optional.
     * The request of each row; then -1.
     */
    spec_tensor row_requests;
    /**
     * `[cap]`, i32: written, optional.
     * The row of the parent of each row's node, -1 for node 0; then -1. `adjust_logits` takes
     * this argument as `parents`.
     */
    spec_tensor row_parents;
    /**
     * `[cap]`, i64 or i32 or u32: written, optional.
     * The token of each row, which the target model reads: `roots` for node 0; then -1.
     */
    spec_tensor row_tokens;
    /**
     * `[cap]`, i32 or i64: written, optional.
     * `starts` plus the depth of each row's node, wrapping; then -1. Needs `starts`.
     */
    spec_tensor row_positions;
    /**
     * `[1]`, u32: changed in place, optional.
     * Bits for bad data, OR-ed into the previous value; only the caller clears them. 1: a
     * share or a trust is not finite; it counts as 0 or 1. 4: a count, a parent or the budget
     * is out of range, and was cut or left out, or there are more rows than `cap`.
     */
    spec_tensor flags;
} spec_draft_tree_tensors;

/**
 * The memory of the tensors that spec_draft_tree_tensors describes.
 */
typedef struct {
    /**
     * sizeof(spec_draft_tree_buffers).
     */
    size_t size;
    const void *candidates;
    const void *parents;
    const void *shares;
    const void *counts;
    const void *trust;
    const void *finished;
    const void *budget;
    const void *roots;
    const void *starts;
    void *drafts;
    void *num_drafts;
    void *picked;
    void *draft_parents;
    void *first_child;
    void *next_sibling;
    void *depths;
    void *masks;
    void *survivals;
    void *row_offsets;
    void *rows;
    void *row_requests;
    void *row_parents;
    void *row_tokens;
    void *row_positions;
    void *flags;
} spec_draft_tree_buffers;

/**
 * Makes trees of drafts from candidates with probabilities, within a budget that all requests
 * share, with the links, masks and packed rows that verification needs.
 *
 * Creates the operator for these tensors on the handle's device: checks everything
 * that they and the parameters can show. `descriptor` becomes yours, to be given to
 * `spec_destroy`, or NULL where the call fails.
 *
 * - `candidates` `[batch, c]`, i64 or i32 or u32: read.
 * - `parents` `[batch, c]`, i32 or i64: read, optional.
 * - `shares` `[batch, c]`, f32: read, optional.
 * - `counts` `[batch] or [batch, 1]`, i32 or i64: read, optional.
 * - `trust` `[batch]`, f32: read, optional.
 * - `finished` `[batch]`, i32: read, optional.
 * - `budget` `[1]`, i32: read, optional.
 * - `roots` `[batch]`, i64 or i32 or u32: read, optional.
 * - `starts` `[batch] or [batch, 1]`, i32 or i64: read, optional.
 * - `drafts` `[batch, n]`, i64 or i32 or u32: written.
 * - `num_drafts` `[batch]`, i32: written.
 * - `picked` `[batch, n]`, i32: written, optional.
 * - `draft_parents` `[batch, n]`, i32: written, optional.
 * - `first_child` `[batch, n + 1]`, i32: written, optional.
 * - `next_sibling` `[batch, n + 1]`, i32: written, optional.
 * - `depths` `[batch, n + 1]`, i32: written, optional.
 * - `masks` `[batch, n + 1, ceil((n + 1) / 32)]`, i32: written, optional.
 * - `survivals` `[batch, n]`, f32: written, optional.
 * - `row_offsets` `[batch + 1]`, i32: written, optional.
 * - `rows` `[cap]`, i32: written, optional.
 * - `row_requests` `[cap]`, i32: written, optional.
 * - `row_parents` `[cap]`, i32: written, optional.
 * - `row_tokens` `[cap]`, i64 or i32 or u32: written, optional.
 * - `row_positions` `[cap]`, i32 or i64: written, optional.
 * - `flags` `[1]`, u32: changed in place, optional.
 *
 * # Errors
 * Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the backend
 * lacks it, 1 or 8 where the device cannot run it.
 *
 * # Safety
 * `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is a
 * place.
 */
spec_status spec_draft_tree_create(const spec_handle *handle,
                                   const spec_draft_tree_params *params,
                                   const spec_draft_tree_tensors *tensors,
                                   spec_descriptor **descriptor);

/**
 * Sets the parameters of draft_tree to their defaults, and those that a caller must give
 * to 0.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a `size` that is none.
 *
 * # Safety
 * `params` has its `size` set.
 */
spec_status spec_draft_tree_defaults(spec_draft_tree_params *params);

/**
 * Enqueues draft_tree on `stream`, and does nothing else.
 *
 * # Errors
 * Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not aligned,
 * 13 for a workspace that is too small, 1 where the device refuses. Bad values in the
 * data are no errors: they set `flags`.
 *
 * # Safety
 * `descriptor` is from `spec_draft_tree_create`, `workspace` has `workspace_size` bytes,
 * and each buffer as many elements as its tensor spans, until the work is done.
 */
spec_status spec_draft_tree_calculate(const spec_descriptor *descriptor,
                                      void *workspace,
                                      size_t workspace_size,
                                      const spec_draft_tree_buffers *buffers,
                                      void *stream);

/**
 * The parameters of tree_verify.
 */
typedef struct {
    /**
     * sizeof(spec_tree_verify_params).
     */
    size_t size;
    /**
     * The largest number of drafts that are kept, which is the depth of the deepest tree.
     * It has no default.
     */
    size_t max_depth;
} spec_tree_verify_params;

/**
 * Descriptors of the arguments of tree_verify.
 */
typedef struct {
    /**
     * sizeof(spec_tree_verify_tensors).
     */
    size_t size;
    /**
     * `[batch, nodes] or [rows]`, i64 or i32 or u32: read.
     * The token of each node. The entry of node 0, the last verified token, is not read. With
     * `row_offsets`, chains may be packed as `target_tokens` is.
     */
    spec_tensor draft_tokens;
    /**
     * `[batch, nodes] or [rows]`, i32 or u32 or i64: read.
     * The token that the target model chose after each node, by `sample_logits` of the node's
     * logits for instance. `[rows]` with `row_offsets`.
     */
    spec_tensor target_tokens;
    /**
     * `[batch, nodes]`, i64 or i32 or u32: read, optional.
     * The first child of each node; -1 for none. `Links` makes this from parents. Absent, as
     * `next_sibling` then is: node v + 1 is the only child of node v.
     */
    spec_tensor first_child;
    /**
     * `[batch, nodes]`, i64 or i32 or u32: read, optional.
     * The next child of the same parent; -1 for none.
     */
    spec_tensor next_sibling;
    /**
     * `[batch, max_depth + 1]`, i32 or u32 or i64: written.
     * The emitted tokens: the drafts that were kept, then the target's own token, then -1.
     */
    spec_tensor tokens;
    /**
     * `[batch, max_depth + 1]`, i32 or u32 or i64: written.
     * The node after which each emitted token was chosen, node 0 first, then -1. A KV cache
     * keeps the entries of these nodes.
     */
    spec_tensor nodes;
    /**
     * `[batch]`, i32: written.
     * The number of emitted tokens: at least 1, but 0 for a request whose root has no row.
     */
    spec_tensor num_tokens;
    /**
     * `[1]`, u32: changed in place, optional.
     * Bits for bad data, OR-ed into the previous value; only the caller clears them. 2: a
     * target token is negative; token 0 is emitted, and the path ends. 4: a child, a sibling
     * or a row is out of range, or there is a cycle; the path ends.
     */
    spec_tensor flags;
    /**
     * `[batch + 1]`, i32 or i64: read, optional.
     * Where the rows of each request begin in `target_tokens`, and where the last ones end.
     */
    spec_tensor row_offsets;
} spec_tree_verify_tensors;

/**
 * The memory of the tensors that spec_tree_verify_tensors describes.
 */
typedef struct {
    /**
     * sizeof(spec_tree_verify_buffers).
     */
    size_t size;
    const void *draft_tokens;
    const void *target_tokens;
    const void *first_child;
    const void *next_sibling;
    void *tokens;
    void *nodes;
    void *num_tokens;
    void *flags;
    const void *row_offsets;
} spec_tree_verify_buffers;

/**
 * Follows the target model down a tree, or a chain, of drafts.
 *
 * Creates the operator for these tensors on the handle's device: checks everything
 * that they and the parameters can show. `descriptor` becomes yours, to be given to
 * `spec_destroy`, or NULL where the call fails.
 *
 * - `draft_tokens` `[batch, nodes] or [rows]`, i64 or i32 or u32: read.
 * - `target_tokens` `[batch, nodes] or [rows]`, i32 or u32 or i64: read.
 * - `first_child` `[batch, nodes]`, i64 or i32 or u32: read, optional.
 * - `next_sibling` `[batch, nodes]`, i64 or i32 or u32: read, optional.
 * - `row_offsets` `[batch + 1]`, i32 or i64: read, optional.
 * - `tokens` `[batch, max_depth + 1]`, i32 or u32 or i64: written.
 * - `nodes` `[batch, max_depth + 1]`, i32 or u32 or i64: written.
 * - `num_tokens` `[batch]`, i32: written.
 * - `flags` `[1]`, u32: changed in place, optional.
 *
 * # Errors
 * Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the backend
 * lacks it, 1 or 8 where the device cannot run it.
 *
 * # Safety
 * `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is a
 * place.
 */
spec_status spec_tree_verify_create(const spec_handle *handle,
                                    const spec_tree_verify_params *params,
                                    const spec_tree_verify_tensors *tensors,
                                    spec_descriptor **descriptor);

/**
 * Sets the parameters of tree_verify to their defaults, and those that a caller must give
 * to 0.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a `size` that is none.
 *
 * # Safety
 * `params` has its `size` set.
 */
spec_status spec_tree_verify_defaults(spec_tree_verify_params *params);

/**
 * Enqueues tree_verify on `stream`, and does nothing else.
 *
 * # Errors
 * Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not aligned,
 * 13 for a workspace that is too small, 1 where the device refuses. Bad values in the
 * data are no errors: they set `flags`.
 *
 * # Safety
 * `descriptor` is from `spec_tree_verify_create`, `workspace` has `workspace_size` bytes,
 * and each buffer as many elements as its tensor spans, until the work is done.
 */
spec_status spec_tree_verify_calculate(const spec_descriptor *descriptor,
                                       void *workspace,
                                       size_t workspace_size,
                                       const spec_tree_verify_buffers *buffers,
                                       void *stream);

/**
 * The parameters of append_tokens.
 */
typedef struct {
    /**
     * sizeof(spec_append_tokens_params).
     */
    size_t size;
} spec_append_tokens_params;

/**
 * Descriptors of the arguments of append_tokens.
 */
typedef struct {
    /**
     * sizeof(spec_append_tokens_tensors).
     */
    size_t size;
    /**
     * `[batch, max_len]`, i64 or i32 or u32: changed in place.
     * The text of each request. Tokens behind the new length keep their values.
     */
    spec_tensor tokens;
    /**
     * `[batch] or [batch, 1]`, i32 or i64: changed in place.
     * How many tokens each text has: read as before the call, written as after it.
     */
    spec_tensor lengths;
    /**
     * `[batch, n]`, i32 or u32 or i64: read.
     * The tokens to append, as `tree_verify` emits them.
     */
    spec_tensor new_tokens;
    /**
     * `[batch] or [batch, 1]`, i32 or i64: read.
     * How many of `new_tokens` each request has.
     */
    spec_tensor new_counts;
    /**
     * `[batch, stops]`, i32 or u32 or i64: read, optional.
     * Tokens that end the text of each request; -1 for none. Stop strings stay the caller's,
     * since a string may begin within a token: find it in the decoded text, cut the text there,
     * and set the request's `finished`.
     */
    spec_tensor stop_tokens;
    /**
     * `[batch] or [batch, 1]`, i32 or i64: read, optional.
     * The largest length of each text; absent: `max_len`.
     */
    spec_tensor max_lengths;
    /**
     * `[batch]`, i32: changed in place, optional.
     * Why each request has finished: 0 for not finished, 1 for a stop token, 2 for the length.
     * A request with a value other than 0 takes nothing and keeps its value.
     */
    spec_tensor finished;
    /**
     * `[batch]`, i32: written.
     * How many tokens each request took.
     */
    spec_tensor appended;
    /**
     * `[batch]`, i64 or i32 or u32: written, optional.
     * The last token of each text after the call, with which the next forward pass begins; -1
     * (the largest value in u32) for an empty text.
     */
    spec_tensor last_tokens;
    /**
     * `[1]`, u32: changed in place, optional.
     * Bits for bad data, OR-ed into the previous value; only the caller clears them. 2: a new
     * token is negative or above 2^31 - 1; the request takes those before it. 4: a length or a
     * count is out of range and was cut.
     */
    spec_tensor flags;
} spec_append_tokens_tensors;

/**
 * The memory of the tensors that spec_append_tokens_tensors describes.
 */
typedef struct {
    /**
     * sizeof(spec_append_tokens_buffers).
     */
    size_t size;
    void *tokens;
    void *lengths;
    const void *new_tokens;
    const void *new_counts;
    const void *stop_tokens;
    const void *max_lengths;
    void *finished;
    void *appended;
    void *last_tokens;
    void *flags;
} spec_append_tokens_buffers;

/**
 * Appends the tokens of a decode step to the texts of its requests, up to stop tokens and
 * length limits.
 *
 * Creates the operator for these tensors on the handle's device: checks everything
 * that they and the parameters can show. `descriptor` becomes yours, to be given to
 * `spec_destroy`, or NULL where the call fails.
 *
 * - `tokens` `[batch, max_len]`, i64 or i32 or u32: changed in place.
 * - `lengths` `[batch] or [batch, 1]`, i32 or i64: changed in place.
 * - `new_tokens` `[batch, n]`, i32 or u32 or i64: read.
 * - `new_counts` `[batch] or [batch, 1]`, i32 or i64: read.
 * - `stop_tokens` `[batch, stops]`, i32 or u32 or i64: read, optional.
 * - `max_lengths` `[batch] or [batch, 1]`, i32 or i64: read, optional.
 * - `finished` `[batch]`, i32: changed in place, optional.
 * - `appended` `[batch]`, i32: written.
 * - `last_tokens` `[batch]`, i64 or i32 or u32: written, optional.
 * - `flags` `[1]`, u32: changed in place, optional.
 *
 * # Errors
 * Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the backend
 * lacks it, 1 or 8 where the device cannot run it.
 *
 * # Safety
 * `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is a
 * place.
 */
spec_status spec_append_tokens_create(const spec_handle *handle,
                                      const spec_append_tokens_params *params,
                                      const spec_append_tokens_tensors *tensors,
                                      spec_descriptor **descriptor);

/**
 * Sets the parameters of append_tokens to their defaults, and those that a caller must give
 * to 0.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a `size` that is none.
 *
 * # Safety
 * `params` has its `size` set.
 */
spec_status spec_append_tokens_defaults(spec_append_tokens_params *params);

/**
 * Enqueues append_tokens on `stream`, and does nothing else.
 *
 * # Errors
 * Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not aligned,
 * 13 for a workspace that is too small, 1 where the device refuses. Bad values in the
 * data are no errors: they set `flags`.
 *
 * # Safety
 * `descriptor` is from `spec_append_tokens_create`, `workspace` has `workspace_size` bytes,
 * and each buffer as many elements as its tensor spans, until the work is done.
 */
spec_status spec_append_tokens_calculate(const spec_descriptor *descriptor,
                                         void *workspace,
                                         size_t workspace_size,
                                         const spec_append_tokens_buffers *buffers,
                                         void *stream);

/**
 * The parameters of moe_align.
 */
typedef struct {
    /**
     * sizeof(spec_moe_align_params).
     */
    size_t size;
    /**
     * Experts that `topk_ids` knows, 1 to [`MAX_EXPERTS`].
     * It has no default.
     */
    size_t experts;
    /**
     * Experts that have a run here: all of them, or fewer with `expert_map`.
     * It has no default.
     */
    size_t local_experts;
    /**
     * Rows of a block of the product: each run is a multiple of it.
     * It has no default.
     */
    size_t block_size;
} spec_moe_align_params;

/**
 * Descriptors of the arguments of moe_align.
 */
typedef struct {
    /**
     * sizeof(spec_moe_align_tensors).
     */
    size_t size;
    /**
     * `[tokens, k]`, i32 or u32 or i64: read.
     * The experts that each token goes to, as `topk_router` gives them; -1 for
     * none.
     */
    spec_tensor topk_ids;
    /**
     * `[experts]`, i32: read, optional.
     * The local number of each expert, -1 where it is not here; absent: all
     * are, under their own numbers.
     */
    spec_tensor expert_map;
    /**
     * `[capacity]`, i32 or u32: written.
     * Picks (`token * k + j`) by local expert, ascending in each run; `tokens *
     * k` in padding and to the end. The capacity is `tokens * k + local_experts
     * * (block_size - 1)`, rounded up to a multiple of `block_size`.
     */
    spec_tensor sorted_ids;
    /**
     * `[capacity / block_size]`, i32: written.
     * The local expert of each block of `sorted_ids`, -1 after the last.
     */
    spec_tensor block_experts;
    /**
     * `[local_experts]`, i32: written.
     * Picks of each local expert.
     */
    spec_tensor counts;
    /**
     * `[local_experts + 1]`, i32: written.
     * Where each local expert's run starts in `sorted_ids`, and where the last
     * ends.
     */
    spec_tensor offsets;
    /**
     * `[1]`, i32: written.
     * Places of `sorted_ids` that belong to a run, padding included.
     */
    spec_tensor num_padded;
    /**
     * `[tokens * k]`, i32: written, optional.
     * Where each pick went in `sorted_ids`, -1 where it was dropped.
     */
    spec_tensor inverse;
    /**
     * `[1]`, u32: changed in place, optional.
     * Bits for bad data, OR-ed into the previous value; only the caller clears them. 2: an
     * expert is out of range; its pick was dropped.
     */
    spec_tensor flags;
    /**
     * `[capacity]`, i32: written, optional.
     * The token of each pick of `sorted_ids`, -1 in padding and to the end.
     */
    spec_tensor sorted_tokens;
    /**
     * `[capacity / block_size]`, i32: written, optional.
     * Where the picks of each block of `sorted_ids` end, as a place in `sorted_ids`: the
     * padding of the block starts there. 0 after the last block.
     */
    spec_tensor block_limits;
    /**
     * `[1]`, i32: written, optional.
     * Blocks of `sorted_ids` that belong to a run.
     */
    spec_tensor num_blocks;
} spec_moe_align_tensors;

/**
 * The memory of the tensors that spec_moe_align_tensors describes.
 */
typedef struct {
    /**
     * sizeof(spec_moe_align_buffers).
     */
    size_t size;
    const void *topk_ids;
    const void *expert_map;
    void *sorted_ids;
    void *block_experts;
    void *counts;
    void *offsets;
    void *num_padded;
    void *inverse;
    void *flags;
    void *sorted_tokens;
    void *block_limits;
    void *num_blocks;
} spec_moe_align_buffers;

/**
 * Groups a router's picks by expert, for grouped matrix products.
 *
 * Creates the operator for these tensors on the handle's device: checks everything
 * that they and the parameters can show. `descriptor` becomes yours, to be given to
 * `spec_destroy`, or NULL where the call fails.
 *
 * - `topk_ids` `[tokens, k]`, i32 or u32 or i64: read.
 * - `expert_map` `[experts]`, i32: read, optional.
 * - `sorted_ids` `[capacity]`, i32 or u32: written.
 * - `block_experts` `[capacity / block_size]`, i32: written.
 * - `counts` `[local_experts]`, i32: written.
 * - `offsets` `[local_experts + 1]`, i32: written.
 * - `num_padded` `[1]`, i32: written.
 * - `inverse` `[tokens * k]`, i32: written, optional.
 * - `sorted_tokens` `[capacity]`, i32: written, optional.
 * - `block_limits` `[capacity / block_size]`, i32: written, optional.
 * - `num_blocks` `[1]`, i32: written, optional.
 * - `flags` `[1]`, u32: changed in place, optional.
 *
 * # Errors
 * Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the backend
 * lacks it, 1 or 8 where the device cannot run it.
 *
 * # Safety
 * `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is a
 * place.
 */
spec_status spec_moe_align_create(const spec_handle *handle,
                                  const spec_moe_align_params *params,
                                  const spec_moe_align_tensors *tensors,
                                  spec_descriptor **descriptor);

/**
 * Sets the parameters of moe_align to their defaults, and those that a caller must give
 * to 0.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a `size` that is none.
 *
 * # Safety
 * `params` has its `size` set.
 */
spec_status spec_moe_align_defaults(spec_moe_align_params *params);

/**
 * Enqueues moe_align on `stream`, and does nothing else.
 *
 * # Errors
 * Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not aligned,
 * 13 for a workspace that is too small, 1 where the device refuses. Bad values in the
 * data are no errors: they set `flags`.
 *
 * # Safety
 * `descriptor` is from `spec_moe_align_create`, `workspace` has `workspace_size` bytes,
 * and each buffer as many elements as its tensor spans, until the work is done.
 */
spec_status spec_moe_align_calculate(const spec_descriptor *descriptor,
                                     void *workspace,
                                     size_t workspace_size,
                                     const spec_moe_align_buffers *buffers,
                                     void *stream);

/**
 * The parameters of indexer_topk.
 */
typedef struct {
    /**
     * sizeof(spec_indexer_topk_params).
     */
    size_t size;
    /**
     * The number of positions to choose in each row, 1 to [`MAX_K`].
     * It has no default.
     */
    size_t k;
    /**
     * The number of positions in a block of a paged cache, 1 to 2^31 - 1.
     * Default: 1.
     */
    size_t block_size;
    /**
     * The number of neighbouring scores of a block, of which the largest counts: a power of
     * two up to [`MAX_POOL`]. With 1, a block is a position.
     * Default: 1.
     */
    size_t pool;
    /**
     * How many of the first blocks are always chosen. Together with `forced_last` at most `k`.
     * Default: 0.
     */
    size_t forced_first;
    /**
     * How many of the last blocks are always chosen.
     * Default: 0.
     */
    size_t forced_last;
    /**
     * The number of positions of a candidate, 1 to [`MAX_POOL`].
     * Default: 1.
     */
    size_t candidate_block;
} spec_indexer_topk_params;

/**
 * Descriptors of the arguments of indexer_topk.
 */
typedef struct {
    /**
     * sizeof(spec_indexer_topk_tensors).
     */
    size_t size;
    /**
     * `[rows, cols]`, f32 or f16 or bf16: read.
     * The scores; larger is better.
     */
    spec_tensor scores;
    /**
     * `[rows]`, i32 or i64: read, optional.
     * How many scores each row covers; absent: all from the row's start on. With `candidates`,
     * how many positions; absent: any number.
     */
    spec_tensor lengths;
    /**
     * `[rows]`, i32 or i64: read, optional.
     * The index of the first score that each row covers; absent: 0.
     */
    spec_tensor starts;
    /**
     * `[rows, k]`, i32 or u32 or i64: written.
     * The positions of the best scores, or the numbers of the best blocks, relative to the
     * row's start, ascending, then -1. With `candidates`, positions in the order of columns.
     */
    spec_tensor indices;
    /**
     * `[1]`, u32: changed in place, optional.
     * Bits for bad data, OR-ed into the previous value; only the caller clears them. 1: a
     * score is NaN. 2: a position without a block, or with a slot above 2^31 - 1, has slot -1,
     * or a candidate that is below -1, or has a position above 2^31 - 1, is not covered. 4: a
     * start or a length is out of range and was cut, or a request is, and its slots are -1.
     */
    spec_tensor flags;
    /**
     * `[rows, k]`, f32: written, optional.
     * The scores at the positions of `indices`; negative infinity for NaN and behind the last
     * position.
     */
    spec_tensor values;
    /**
     * `[tables, blocks]`, i32: read, optional.
     * The blocks of a paged cache that hold the positions of each request, `block_size`
     * positions in each block.
     */
    spec_tensor block_table;
    /**
     * `[rows]`, i32: read, optional.
     * The row of `block_table` for each row of scores; absent: row r of `block_table` for row
     * r of scores. Needs `block_table`.
     */
    spec_tensor requests;
    /**
     * `[rows, k]`, i32: written, optional.
     * The slot in the paged cache of each position of `indices`; -1 for a position that the
     * cache does not have, and behind the last position. Needs `block_table`.
     */
    spec_tensor slots;
    /**
     * `[rows, c]`, i32: read, optional.
     * The blocks of `candidate_block` positions whose scores `scores` has, -1 for none: `cols`
     * is `c * candidate_block`. Without `starts`, `pool` and forced blocks.
     */
    spec_tensor candidates;
} spec_indexer_topk_tensors;

/**
 * The memory of the tensors that spec_indexer_topk_tensors describes.
 */
typedef struct {
    /**
     * sizeof(spec_indexer_topk_buffers).
     */
    size_t size;
    const void *scores;
    const void *lengths;
    const void *starts;
    void *indices;
    void *flags;
    void *values;
    const void *block_table;
    const void *requests;
    void *slots;
    const void *candidates;
} spec_indexer_topk_buffers;

/**
 * The positions of the `k` best scores of each row, for sparse attention. `deduplicate_topk`
 * takes these positions.
 *
 * Creates the operator for these tensors on the handle's device: checks everything
 * that they and the parameters can show. `descriptor` becomes yours, to be given to
 * `spec_destroy`, or NULL where the call fails.
 *
 * - `scores` `[rows, cols]`, f32 or f16 or bf16: read.
 * - `lengths` `[rows]`, i32 or i64: read, optional.
 * - `starts` `[rows]`, i32 or i64: read, optional.
 * - `candidates` `[rows, c]`, i32: read, optional.
 * - `indices` `[rows, k]`, i32 or u32 or i64: written.
 * - `values` `[rows, k]`, f32: written, optional.
 * - `block_table` `[tables, blocks]`, i32: read, optional.
 * - `requests` `[rows]`, i32: read, optional.
 * - `slots` `[rows, k]`, i32: written, optional.
 * - `flags` `[1]`, u32: changed in place, optional.
 *
 * # Errors
 * Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the backend
 * lacks it, 1 or 8 where the device cannot run it.
 *
 * # Safety
 * `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is a
 * place.
 */
spec_status spec_indexer_topk_create(const spec_handle *handle,
                                     const spec_indexer_topk_params *params,
                                     const spec_indexer_topk_tensors *tensors,
                                     spec_descriptor **descriptor);

/**
 * Sets the parameters of indexer_topk to their defaults, and those that a caller must give
 * to 0.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a `size` that is none.
 *
 * # Safety
 * `params` has its `size` set.
 */
spec_status spec_indexer_topk_defaults(spec_indexer_topk_params *params);

/**
 * Enqueues indexer_topk on `stream`, and does nothing else.
 *
 * # Errors
 * Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not aligned,
 * 13 for a workspace that is too small, 1 where the device refuses. Bad values in the
 * data are no errors: they set `flags`.
 *
 * # Safety
 * `descriptor` is from `spec_indexer_topk_create`, `workspace` has `workspace_size` bytes,
 * and each buffer as many elements as its tensor spans, until the work is done.
 */
spec_status spec_indexer_topk_calculate(const spec_descriptor *descriptor,
                                        void *workspace,
                                        size_t workspace_size,
                                        const spec_indexer_topk_buffers *buffers,
                                        void *stream);

/**
 * The parameters of hot_slots.
 */
typedef struct {
    /**
     * sizeof(spec_hot_slots_params).
     */
    size_t size;
    /**
     * The number of slots of a block of `block_table`.
     * Default: 1.
     */
    size_t block_size;
    /**
     * The number of entries of a page of `pages`.
     * Default: 1.
     */
    size_t page_size;
    /**
     * The number of a page that stands for none, as do all lower numbers; at least -1.
     * Default: -1.
     */
    int64_t null_page;
    /**
     * The number of slots behind the `h` others that the model writes itself, at most 1024.
     * Default: 0.
     */
    size_t tail;
} spec_hot_slots_params;

/**
 * Descriptors of the arguments of hot_slots.
 */
typedef struct {
    /**
     * sizeof(spec_hot_slots_tensors).
     */
    size_t size;
    /**
     * `[batch, m]`, i32: read.
     * The entries that each row wants; negative values are padding.
     */
    spec_tensor wanted;
    /**
     * `[batch]`, i32: read, optional.
     * The row of `resident`, `used`, `pages` and `block_table` that each row has; -1 for
     * padding. Absent: row r has row r.
     */
    spec_tensor requests;
    /**
     * `[tables, h]`, i32: changed in place.
     * The entry that each slot holds; negative for an empty slot.
     */
    spec_tensor resident;
    /**
     * `[tables, h]`, i32: changed in place.
     * The step at which each slot was last wanted.
     */
    spec_tensor used;
    /**
     * `[1] or [batch]`, i32 or i64: read.
     * A number that grows from call to call, such as the length of the text. Its low 32 bits
     * count.
     */
    spec_tensor step;
    /**
     * `[batch]`, i32: read, optional.
     * Where nonzero, all slots of the row's request become empty first.
     */
    spec_tensor reset;
    /**
     * `[batch]`, i32 or i64: read, optional.
     * Where the first tail slot's entry is. Needed for a `tail` above 0.
     */
    spec_tensor tail_starts;
    /**
     * `[tables, blocks]`, i32: read, optional.
     * The block of the cache that holds each `block_size` slots; negative for none. Absent: the
     * place of a slot is its number.
     */
    spec_tensor block_table;
    /**
     * `[tables, page_count]`, i32: read, optional.
     * The page of the cache that holds each `page_size` entries outside of the slots. Needs
     * `block_table`.
     */
    spec_tensor pages;
    /**
     * `[batch, m]`, i32: written.
     * Where each wanted entry lies; -1 where it does not.
     */
    spec_tensor slots;
    /**
     * `[batch, m]`, i32: written.
     * The entries to fetch, ascending, then -1.
     */
    spec_tensor fetch_positions;
    /**
     * `[batch, m]`, i32: written.
     * Where each of `fetch_positions` goes, then -1.
     */
    spec_tensor fetch_slots;
    /**
     * `[batch]`, i32: written.
     * The number of entries to fetch of each row.
     */
    spec_tensor fetches;
    /**
     * `[1]`, u32: changed in place, optional.
     * Bits for bad data, OR-ed into the previous value; only the caller clears them. 2: an
     * entry behind the tail, or with a place above 2^31 - 1, has slot -1, or a slot with such
     * a place is not there. 4: a request is out of range or comes twice, and was left out;
     * there are more misses than slots; or a tail start is negative and counts as 0.
     */
    spec_tensor flags;
} spec_hot_slots_tensors;

/**
 * The memory of the tensors that spec_hot_slots_tensors describes.
 */
typedef struct {
    /**
     * sizeof(spec_hot_slots_buffers).
     */
    size_t size;
    const void *wanted;
    const void *requests;
    void *resident;
    void *used;
    const void *step;
    const void *reset;
    const void *tail_starts;
    const void *block_table;
    const void *pages;
    void *slots;
    void *fetch_positions;
    void *fetch_slots;
    void *fetches;
    void *flags;
} spec_hot_slots_buffers;

/**
 * Which slots of a device buffer hold the KV entries that a step wants, and which entries must
 * be fetched: KV offload with exact LRU.
 *
 * Creates the operator for these tensors on the handle's device: checks everything
 * that they and the parameters can show. `descriptor` becomes yours, to be given to
 * `spec_destroy`, or NULL where the call fails.
 *
 * - `wanted` `[batch, m]`, i32: read.
 * - `requests` `[batch]`, i32: read, optional.
 * - `resident` `[tables, h]`, i32: changed in place.
 * - `used` `[tables, h]`, i32: changed in place.
 * - `step` `[1] or [batch]`, i32 or i64: read.
 * - `reset` `[batch]`, i32: read, optional.
 * - `tail_starts` `[batch]`, i32 or i64: read, optional.
 * - `block_table` `[tables, blocks]`, i32: read, optional.
 * - `pages` `[tables, page_count]`, i32: read, optional.
 * - `slots` `[batch, m]`, i32: written.
 * - `fetch_positions` `[batch, m]`, i32: written.
 * - `fetch_slots` `[batch, m]`, i32: written.
 * - `fetches` `[batch]`, i32: written.
 * - `flags` `[1]`, u32: changed in place, optional.
 *
 * # Errors
 * Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the backend
 * lacks it, 1 or 8 where the device cannot run it.
 *
 * # Safety
 * `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is a
 * place.
 */
spec_status spec_hot_slots_create(const spec_handle *handle,
                                  const spec_hot_slots_params *params,
                                  const spec_hot_slots_tensors *tensors,
                                  spec_descriptor **descriptor);

/**
 * Sets the parameters of hot_slots to their defaults, and those that a caller must give
 * to 0.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a `size` that is none.
 *
 * # Safety
 * `params` has its `size` set.
 */
spec_status spec_hot_slots_defaults(spec_hot_slots_params *params);

/**
 * Enqueues hot_slots on `stream`, and does nothing else.
 *
 * # Errors
 * Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not aligned,
 * 13 for a workspace that is too small, 1 where the device refuses. Bad values in the
 * data are no errors: they set `flags`.
 *
 * # Safety
 * `descriptor` is from `spec_hot_slots_create`, `workspace` has `workspace_size` bytes,
 * and each buffer as many elements as its tensor spans, until the work is done.
 */
spec_status spec_hot_slots_calculate(const spec_descriptor *descriptor,
                                     void *workspace,
                                     size_t workspace_size,
                                     const spec_hot_slots_buffers *buffers,
                                     void *stream);

/**
 * The parameters of unique.
 */
typedef struct {
    /**
     * sizeof(spec_unique_params).
     */
    size_t size;
} spec_unique_params;

/**
 * Descriptors of the arguments of unique.
 */
typedef struct {
    /**
     * sizeof(spec_unique_tensors).
     */
    size_t size;
    /**
     * `[n]`, u64 or i64 or u32 or i32: read.
     * Keys `[n]`, u64, i64, u32 or i32, in any order.
     */
    spec_tensor keys;
    /**
     * `[n]`, u64 or i64 or u32 or i32: written.
     * Distinct keys `[n]`, as `keys`; the first `count` are written.
     */
    spec_tensor unique;
    /**
     * `[1]`, u64: written.
     * How many distinct keys there are `[1]`, u64.
     */
    spec_tensor count;
    /**
     * `[n]`, u64: written, optional.
     * Occurrences of each distinct key `[n]`, u64.
     */
    spec_tensor counts;
    /**
     * `[n]`, i64 or i32: written, optional.
     * Where each key is among the distinct keys `[n]`, i64, or i32 for at most 2^31 - 1
     * keys: `unique[inverse[i]]` is `keys[i]`.
     */
    spec_tensor inverse;
} spec_unique_tensors;

/**
 * The memory of the tensors that spec_unique_tensors describes.
 */
typedef struct {
    /**
     * sizeof(spec_unique_buffers).
     */
    size_t size;
    const void *keys;
    void *unique;
    void *count;
    void *counts;
    void *inverse;
} spec_unique_buffers;

/**
 * The distinct keys of a set, ascending, how often each occurs, and where each key went.
 *
 * Creates the operator for these tensors on the handle's device: checks everything
 * that they and the parameters can show. `descriptor` becomes yours, to be given to
 * `spec_destroy`, or NULL where the call fails.
 *
 * - `keys` `[n]`, u64 or i64 or u32 or i32: read.
 * - `unique` `[n]`, u64 or i64 or u32 or i32: written.
 * - `count` `[1]`, u64: written.
 * - `counts` `[n]`, u64: written, optional.
 * - `inverse` `[n]`, i64 or i32: written, optional.
 *
 * # Errors
 * Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the backend
 * lacks it, 1 or 8 where the device cannot run it.
 *
 * # Safety
 * `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is a
 * place.
 */
spec_status spec_unique_create(const spec_handle *handle,
                               const spec_unique_params *params,
                               const spec_unique_tensors *tensors,
                               spec_descriptor **descriptor);

/**
 * Sets the parameters of unique to their defaults, and those that a caller must give
 * to 0.
 *
 * # Errors
 * Status 4 for a null pointer, 3 for a `size` that is none.
 *
 * # Safety
 * `params` has its `size` set.
 */
spec_status spec_unique_defaults(spec_unique_params *params);

/**
 * Enqueues unique on `stream`, and does nothing else.
 *
 * # Errors
 * Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not aligned,
 * 13 for a workspace that is too small, 1 where the device refuses. Bad values in the
 * data are no errors: they set `flags`.
 *
 * # Safety
 * `descriptor` is from `spec_unique_create`, `workspace` has `workspace_size` bytes,
 * and each buffer as many elements as its tensor spans, until the work is done.
 */
spec_status spec_unique_calculate(const spec_descriptor *descriptor,
                                  void *workspace,
                                  size_t workspace_size,
                                  const spec_unique_buffers *buffers,
                                  void *stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SPEC_H */
