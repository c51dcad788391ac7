//! Distinct values.

use curt_proto::nfs3::*;

/// Returns distinct values, so that swapped fields are detected.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0.rotate_left(17)
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::try_from(self.u64() >> 32).unwrap()
    }

    pub(crate) fn maybe<T>(&mut self, value: T) -> Option<T> {
        (self.u32() & 1 == 0).then_some(value)
    }

    pub(crate) fn handle(&mut self) -> NfsFh3 {
        let length = usize::try_from(self.u64() % 65).unwrap();
        let byte = self.u64().to_be_bytes()[0];
        NfsFh3::new(&vec![byte; length]).unwrap()
    }

    pub(crate) fn time(&mut self) -> NfsTime {
        NfsTime { seconds: self.u32(), nanoseconds: self.u32() }
    }

    pub(crate) fn fattr(&mut self) -> Fattr {
        let kinds = [Ftype::Regular, Ftype::Directory, Ftype::Symlink, Ftype::Fifo];
        Fattr {
            kind: kinds[usize::try_from(self.u64() % 4).unwrap()],
            mode: self.u32(),
            nlink: self.u32(),
            uid: self.u32(),
            gid: self.u32(),
            size: self.u64(),
            used: self.u64(),
            rdev: SpecData { major: self.u32(), minor: self.u32() },
            fsid: self.u64(),
            fileid: Fileid(self.u64()),
            atime: self.time(),
            mtime: self.time(),
            ctime: self.time(),
        }
    }

    pub(crate) fn post_op(&mut self) -> Option<Fattr> {
        let fattr = self.fattr();
        self.maybe(fattr)
    }

    pub(crate) fn wcc(&mut self) -> WccData {
        let before = WccAttr { size: self.u64(), mtime: self.time(), ctime: self.time() };
        WccData { before: self.maybe(before), after: self.post_op() }
    }

    pub(crate) fn set_time(&mut self) -> TimeHow {
        match self.u32() % 3 {
            0 => TimeHow::DontChange,
            1 => TimeHow::SetToServerTime,
            _ => TimeHow::SetToClientTime(self.time()),
        }
    }

    pub(crate) fn sattr(&mut self) -> Sattr {
        let (mode, uid, gid, size) = (self.u32(), self.u32(), self.u32(), self.u64());
        Sattr {
            mode: self.maybe(mode),
            uid: self.maybe(uid),
            gid: self.maybe(gid),
            size: self.maybe(size),
            atime: self.set_time(),
            mtime: self.set_time(),
        }
    }

    pub(crate) fn place<'a>(&mut self, name: &'a [u8]) -> DirOpArgs<'a> {
        DirOpArgs { directory: self.handle(), name: Filename::new(name).unwrap() }
    }

    pub(crate) fn verifier(&mut self) -> [u8; 8] {
        self.u64().to_be_bytes()
    }
}
