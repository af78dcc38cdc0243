/// The size from which glibc maps each block by itself, in bytes: its default, which it otherwise raises to the size of the
/// largest block that was ever freed, up to 32 MiB.
const MMAP_THRESHOLD: i32 = 128 << 10;

/// Lets our own process return each large block to the kernel when it is freed. Otherwise tables of several megabytes that
/// are freed after the capture stay resident, because glibc's threads keep the memory of their arenas. Smaller blocks come
/// from one arena for the same reason.
pub fn return_freed_memory() {
    // SAFETY: no pointers are passed, and no other thread is running yet that could be inside malloc.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD);
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
