/* The header compiles on its own, and its structs have the layout that the library reads. */
#include <spec.h>

#ifdef __cplusplus
#define CHECK(what) static_assert(what, #what)
#else
#define NAME_(line) check_##line
#define NAME(line) NAME_(line)
#define CHECK(what) extern int NAME(__LINE__)[(what) ? 1 : -1]
#endif

CHECK(sizeof(spec_status) == 4);
CHECK(sizeof(spec_tensor) == 72);
CHECK(sizeof(spec_device) == 296);
CHECK(sizeof(spec_topk_router_params) == 13 * 8);

int main(void) {
    return spec_abi_version() == SPEC_ABI_VERSION ? 0 : 1;
}
