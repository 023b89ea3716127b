// The blocks of a cluster, or a single block where there is none.
#pragma once

#include "common.cuh"

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
