//! The memory of this process.
#![allow(unsafe_code)] // glibc's call has no safe binding.

/// Gives freed memory back to the system.
///
/// glibc keeps what was freed in each of its arenas, unless it lies at an arena's end (docs/figures.md, "Freed memory is given
/// back").
#[cfg(target_env = "gnu")]
pub fn release_freed() {
    // SAFETY: it may be called at any time and from any thread; it takes the allocator's own locks, and touches only what is free.
    unsafe { libc::malloc_trim(0) };
}

/// Other C libraries return it by themselves.
#[cfg(not(target_env = "gnu"))]
pub fn release_freed() {}
