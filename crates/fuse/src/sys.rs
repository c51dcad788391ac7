//! System calls without a safe wrapper.
//!
//! JUSTIFICATION: FUSE_DEV_IOC_CLONE has no safe wrapper, nor has a write of unreadable memory.
//! Buffers are separate mappings, because a vector of 1 MiB costs a memset once the allocator
//! reuses memory (about 30 µs), and thousands of them would stay resident.
#![allow(unsafe_code, reason = "an ioctl of the FUSE device, a write that ends early, and anonymous pages")]

use std::{
    ffi::c_void,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr,
    ptr::NonNull,
    slice,
};

use rustix::{
    io::Errno,
    ioctl,
    mm::{MapFlags, ProtFlags, mmap_anonymous, munmap},
};

/// Makes the newly opened `device` another descriptor of the connection of `original`.
pub(crate) fn clone_device(device: BorrowedFd<'_>, original: BorrowedFd<'_>) -> Result<(), Errno> {
    // _IOR(229, 0, uint32_t): include/uapi/linux/fuse.h, FUSE_DEV_IOC_CLONE.
    const CLONE: ioctl::Opcode = ioctl::opcode::read::<u32>(229, 0);
    let number = u32::try_from(original.as_raw_fd()).map_err(|_| Errno::BADF)?;
    // SAFETY: the opcode takes a pointer to a u32 with the number of a descriptor, which the kernel
    // only reads.
    let request = unsafe { ioctl::Setter::<CLONE, u32>::new(number) };
    // SAFETY: `device` is a descriptor of the FUSE device, for which the opcode is defined; it
    // accesses no other memory.
    unsafe { ioctl::ioctl(device.as_fd(), request) }
}

/// Writes `bytes` and one byte at an invalid address, as one message: the kernel gets EFAULT when
/// it reads that byte.
pub(crate) fn write_and_an_unreadable_byte(device: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Errno> {
    let parts = [
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() },
        libc::iovec { iov_base: ptr::null_mut(), iov_len: 1 },
    ];
    // SAFETY: the kernel only reads the two ranges: `bytes`, which are borrowed, and one at the
    // null address, which the kernel checks.
    let written = unsafe { libc::writev(device.as_raw_fd(), parts.as_ptr(), 2) };
    if written >= 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Bytes that take memory only after they were written.
pub(crate) struct PageBuffer {
    start: NonNull<c_void>,
    length: usize,
}

impl PageBuffer {
    /// `length` zero bytes.
    pub(crate) fn new(length: usize) -> Result<Self, Errno> {
        // SAFETY: no address is requested, so no existing mapping is replaced.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        let start = NonNull::new(start).ok_or(Errno::NOMEM)?;
        Ok(Self { start, length })
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has `length` readable and writable bytes, is initialised (to zeros),
        // belongs to this value alone, and lives as long as it; `&mut self` makes the borrow
        // exclusive.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr().cast::<u8>(), self.length) }
    }
}

// SAFETY: the mapping belongs to this value alone and can be used from any thread.
unsafe impl Send for PageBuffer {}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this start and length, and no borrow of it is left.
        let _ = unsafe { munmap(self.start.as_ptr(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_zero_and_all_of_it_is_ours() {
        let mut buffer = PageBuffer::new(1 << 20).expect("memory");
        assert!(buffer.bytes().iter().all(|&byte| byte == 0));
        buffer.bytes().fill(7);
        assert_eq!(buffer.bytes().len(), 1 << 20);
    }
}
