//! Counts allocations of the whole process; for tests of other crates, too.
//!
//! JUSTIFICATION: the allocator is an unsafe trait; nothing else sees every allocation.
#![allow(unsafe_code, reason = "GlobalAlloc is an unsafe trait")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

static COUNT: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often memory was asked for so far.
pub(crate) fn allocations() -> usize {
    COUNT.load(Ordering::SeqCst)
}

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from the call above with this `layout`, as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}
