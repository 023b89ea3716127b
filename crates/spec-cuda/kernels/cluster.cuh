// A thread block cluster: its barriers, and access to the shared memory of its other blocks. A
// block that was launched without a cluster counts as a cluster of one block.
#pragma once

#include "params/shared.cuh"

struct Cluster {
    // The number of blocks, and the number of this block among them.
    u32 size;
    u32 rank;

    INLINE Cluster() {
#if __CUDA_ARCH__ >= 900
        asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#else
        size = 1;
        rank = 0;
#endif
    }

    // This block as a cluster of its own, even if it was launched in a larger cluster.
    INLINE static Cluster alone() {
        Cluster cluster;
        cluster.size = 1;
        cluster.rank = 0;
        return cluster;
    }

    // A barrier of all threads in the cluster, in two halves: a thread calls `arrive`, works on,
    // and calls `wait`, which returns when all threads have called `arrive`. After `wait`, a thread
    // sees what every thread wrote to shared or global memory before its `arrive`. A block whose
    // shared memory is read by other blocks ends only after a `wait` that follows these reads.
    INLINE void arrive() const {
#if __CUDA_ARCH__ >= 900
        __syncwarp();
        if (size > 1) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
    }

    INLINE void wait() const {
#if __CUDA_ARCH__ >= 900
        __syncwarp();
        if (size > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    }

    // The whole barrier: `arrive`, then `wait`.
    INLINE void sync() const {
        if (size == 1) {
            __syncthreads();
            return;
        }
        arrive();
        wait();
    }

    // The address of a variable in the shared memory of block `block`, where `here` is the address
    // of the same variable in the shared memory of this block.
    template <typename T>
    INLINE T* of(T* here, u32 block) const {
        if (size == 1) return here;
#if __CUDA_ARCH__ >= 900
        u64 there;
        asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(reinterpret_cast<u64>(here)), "r"(block));
        return reinterpret_cast<T*>(there);
#else
        return here;
#endif
    }
};

// A cluster whose blocks send values to each other. The receiver waits at its own `Arrivals`, so no
// barrier of the whole cluster is needed for the values.
struct Senders : Cluster {
    // Arrives at the barrier. The stores of this block's threads to the block's shared memory are
    // visible to threads that have waited; stores to global memory need not be. (`arrive` would
    // also wait for the stores to global memory.)
    INLINE void arrive_prepared() const {
#if __CUDA_ARCH__ >= 900
        __syncwarp();
        asm volatile("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
    }

    // Arrives at the barrier without ordering memory. Says that this block has started and has
    // published the `init` of its `Arrivals`, or that it no longer needs the other blocks.
    INLINE void arrive_started() const {
#if __CUDA_ARCH__ >= 900
        __syncwarp();
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
    }

    // Waits until all threads of the cluster have arrived.
    INLINE void wait_started() const {
#if __CUDA_ARCH__ >= 900
        __syncwarp();
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    }

    // Stores `value` in the shared memory of block `to` and counts its bytes at a barrier of that
    // block. `at` and `barrier` are the addresses of the same variables in this block.
    INLINE void put(u64* at, u64* barrier, u32 to, u64 value) const {
#if __CUDA_ARCH__ >= 900
        asm volatile(
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(
                address(at, to)),
            "l"(value), "r"(address(barrier, to))
            : "memory");
#endif
    }

private:
    INLINE static u32 address(u64* at, u32 rank) {
        u32 there = 0;
#if __CUDA_ARCH__ >= 900
        const u32 here = static_cast<u32>(__cvta_generic_to_shared(at));
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
#endif
        return there;
    }
};

// A barrier in shared memory (an mbarrier). Its phase is complete when as many bytes have come as
// `expect` announced.
struct Arrivals {
    u64 word;

    INLINE void init() {
#if __CUDA_ARCH__ >= 900
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(here()) : "memory");
#endif
    }

    // Makes `init` visible to the other blocks of the cluster.
    INLINE static void publish_init() {
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }

    INLINE void expect(u32 bytes) {
#if __CUDA_ARCH__ >= 900
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(here()),
                     "r"(bytes)
                     : "memory");
#endif
    }

    // Waits until the phase of this parity is complete. Afterwards the values that other blocks of
    // the cluster sent are visible: the fence acquires them. (Without qualifiers, `try_wait`
    // acquires at the scope of the block, which does not cover these values. With acquire at the
    // scope of the cluster, it would also invalidate the first-level cache, which has none of these
    // values.)
    INLINE void wait(u32 parity) {
#if __CUDA_ARCH__ >= 900
        u32 done = 0;
        while (done == 0) {
            asm volatile(
                "{ .reg .pred p; "
                "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%1], %2; "
                "selp.u32 %0, 1, 0, p; }"
                : "=r"(done)
                : "r"(here()), "r"(parity)
                : "memory");
        }
        asm volatile("fence.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
#endif
    }

private:
    INLINE u32 here() { return static_cast<u32>(__cvta_generic_to_shared(&word)); }
};
