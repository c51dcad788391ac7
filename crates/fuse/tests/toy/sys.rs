//! A write through a shared mapping.
//!
//! JUSTIFICATION: a mapping cannot be written without unsafe code, and the tests need the kernel's
//! requests for it.
#![allow(unsafe_code, reason = "mmap")]

use std::{fs::File, ptr, slice};

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// Writes `data` at the start of the file's first page through a shared mapping, and waits until it
/// is written back.
pub fn write_through_mapping(file: &File, data: &[u8]) {
    const LENGTH: usize = 4096;
    // SAFETY: no address is requested; the file is as long as the mapping.
    let start = unsafe {
        mmap(ptr::null_mut(), LENGTH, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
    }
    .expect("a mapping");
    // SAFETY: the mapping has LENGTH bytes, and nothing else in this process touches it.
    let bytes = unsafe { slice::from_raw_parts_mut(start.cast::<u8>(), LENGTH) };
    bytes[..data.len()].copy_from_slice(data);
    // SAFETY: start and length are those of the mapping.
    unsafe { msync(start, LENGTH, MsyncFlags::SYNC) }.expect("written back");
    // SAFETY: the slice is not used any more.
    unsafe { munmap(start, LENGTH) }.expect("unmapped");
}
