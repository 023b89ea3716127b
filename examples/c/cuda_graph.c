/* A router in a CUDA graph: captured once, replayed on logits that change.
 *
 *     cc -std=c99 cuda_graph.c $(pkg-config --cflags --libs spec) \
 *         -I$CUDA_HOME/include -L$CUDA_HOME/lib64 -lcudart -o cuda_graph && ./cuda_graph
 */
#include <cuda_runtime_api.h>
#include <spec.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void check(spec_status status) {
    char words[512];
    if (status == SPEC_STATUS_SUCCESS) {
        return;
    }
    spec_last_error(words, sizeof words);
    fprintf(stderr, "%s\n", words);
    exit(EXIT_FAILURE);
}

static void cuda(cudaError_t error) {
    if (error != cudaSuccess) {
        fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
        exit(EXIT_FAILURE);
    }
}

static spec_tensor matrix(uint32_t dtype, int64_t rows, int64_t cols) {
    spec_tensor tensor = {0};
    tensor.dtype = dtype;
    tensor.rank = 2;
    tensor.shape[0] = rows;
    tensor.shape[1] = cols;
    return tensor;
}

int main(void) {
    enum { TOKENS = 2, EXPERTS = 8, TOPK = 2, REPLAYS = 4 };

    /* Memory and stream are the engine's own. */
    float *x, *weights;
    int32_t *indices;
    cudaStream_t stream;
    cuda(cudaMalloc((void **)&x, TOKENS * EXPERTS * sizeof(float)));
    cuda(cudaMalloc((void **)&weights, TOKENS * TOPK * sizeof(float)));
    cuda(cudaMalloc((void **)&indices, TOKENS * TOPK * sizeof(int32_t)));
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

    spec_handle *device = NULL;
    check(spec_open("cuda:0", &device));
    spec_topk_router_params params = {0};
    params.size = sizeof params;
    check(spec_topk_router_preset("Mixtral", &params, NULL, NULL));
    spec_topk_router_tensors tensors = {0};
    tensors.size = sizeof tensors;
    tensors.x = matrix(SPEC_DTYPE_F32, TOKENS, EXPERTS);
    tensors.weights = matrix(SPEC_DTYPE_F32, TOKENS, TOPK);
    tensors.indices = matrix(SPEC_DTYPE_I32, TOKENS, TOPK);
    spec_descriptor *router = NULL;
    check(spec_topk_router_create(device, &params, &tensors, &router));
    size_t bytes = 0;
    check(spec_workspace_size(router, &bytes));
    void *workspace = NULL;
    cuda(cudaMalloc(&workspace, bytes > 0 ? bytes : 1));

    /* The call is captured: nothing runs yet. */
    spec_topk_router_buffers buffers = {0};
    buffers.size = sizeof buffers;
    buffers.x = x;
    buffers.weights = weights;
    buffers.indices = indices;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    check(spec_topk_router_calculate(router, workspace, bytes, &buffers, stream));
    cuda(cudaStreamEndCapture(stream, &graph));
    cuda(cudaGraphInstantiateWithFlags(&executable, graph, 0));

    /* Each replay routes what is in `x` by then. */
    int wrong = 0;
    for (int replay = 0; replay < REPLAYS; replay++) {
        float logits[TOKENS * EXPERTS] = {0};
        int32_t picked[TOKENS * TOPK];
        logits[replay] = 2.0f;
        logits[EXPERTS + EXPERTS - 1 - replay] = 3.0f;
        cuda(cudaMemcpyAsync(x, logits, sizeof logits, cudaMemcpyHostToDevice, stream));
        cuda(cudaGraphLaunch(executable, stream));
        cuda(cudaMemcpyAsync(picked, indices, sizeof picked, cudaMemcpyDeviceToHost, stream));
        cuda(cudaStreamSynchronize(stream));
        printf("replay %d: experts %d and %d\n", replay, (int)picked[0], (int)picked[TOPK]);
        wrong |= picked[0] != replay || picked[TOPK] != EXPERTS - 1 - replay;
    }

    /* NULL is the legacy default stream. */
    check(spec_topk_router_calculate(router, workspace, bytes, &buffers, NULL));
    cuda(cudaStreamSynchronize(NULL));

    cuda(cudaGraphExecDestroy(executable));
    cuda(cudaGraphDestroy(graph));
    check(spec_destroy(router));
    check(spec_close(device));
    cuda(cudaStreamDestroy(stream));
    cuda(cudaFree(workspace));
    cuda(cudaFree(indices));
    cuda(cudaFree(weights));
    cuda(cudaFree(x));
    printf(wrong ? "wrong\n" : "right\n");
    return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
