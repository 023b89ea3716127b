// The blocks of a cluster, or a single block where there is none.
#pragma once

#include "common.cuh"

// The most blocks of a cluster, of those that are not portable too.
constexpr u32 MAX_CLUSTER = 16;

struct Cluster {
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

    // A block by itself, whatever its cluster.
    INLINE static Cluster alone() {
        Cluster cluster;
        cluster.size = 1;
        cluster.rank = 0;
        return cluster;
    }

    // The halves of a barrier that orders memory, shared and global. A block stays
    // until all have arrived: others may still read its shared memory.
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

    // What was written before is seen by all after it.
    INLINE void sync() const {
        if (size == 1) {
            __syncthreads();
            return;
        }
        arrive();
        wait();
    }

    // The same place in the shared memory of another block.
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

// A cluster whose blocks send values without a barrier of all.
struct Senders : Cluster {
    // Arrives with what this block's threads have stored in its shared memory: whoever waits sees
    // that, and nothing else. (`arrive` would wait for stores to global memory too.)
    INLINE void arrive_prepared() const {
#if __CUDA_ARCH__ >= 900
        __syncwarp();
        asm volatile("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
    }

    // Arrives without a word about memory: that this block has started, with barriers whose
    // `init` was published, or that it needs nothing of the others any more.
    INLINE void arrive_started() const {
#if __CUDA_ARCH__ >= 900
        __syncwarp();
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
    }

    INLINE void wait_started() const {
#if __CUDA_ARCH__ >= 900
        __syncwarp();
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    }

    // Stores into the shared memory of block `to`, at the place of `at` here,
    // and counts the bytes at that block's `barrier`.
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

// A barrier in shared memory that completes a phase when the bytes it was told to
// expect have come.
struct Arrivals {
    u64 word;

    INLINE void init() {
#if __CUDA_ARCH__ >= 900
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(here()) : "memory");
#endif
    }

    // Makes `init` known to the cluster.
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

    // Waits for a phase. What other blocks of the cluster sent is seen after it. (By itself,
    // `try_wait` acquires at the block's scope, which orders nothing of theirs; at the cluster's
    // scope it would drop the first-level cache besides, which holds none of it.)
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
