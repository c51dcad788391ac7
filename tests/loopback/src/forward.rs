//! File systems of tests that do as a tree in memory, but for some of their methods.

/// Implements these methods of `curt_vfs::Vfs` by those of the field `tree`.
#[macro_export]
macro_rules! forward_to_tree {
    ($($method:ident),* $(,)?) => { $($crate::forward_method!($method);)* };
}

/// Implements one method of `curt_vfs::Vfs` by that of the field `tree`.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_method {
    (root) => { $crate::forward_method!(@root() -> curt_vfs::NodeHandle); };
    (identity) => { $crate::forward_method!(@identity() -> u64); };
    (losses) => { $crate::forward_method!(@losses() -> u64); };
    (may_block) => { $crate::forward_method!(@may_block() -> curt_vfs::MayBlock); };
    (sync_all) => { $crate::forward_method!(@sync_all() -> Result<(), curt_vfs::Error>); };
    (pin) => { $crate::forward_method!(@pin(node: &curt_vfs::NodeHandle) -> Result<curt_vfs::NodePin, curt_vfs::Error>); };
    (attributes) => { $crate::forward_method!(@attributes(node: &curt_vfs::NodeHandle) -> Result<curt_types::Attributes, curt_vfs::Error>); };
    (limits) => { $crate::forward_method!(@limits(node: &curt_vfs::NodeHandle) -> curt_vfs::PostOpResult<curt_vfs::Limits>); };
    (space) => { $crate::forward_method!(@space(node: &curt_vfs::NodeHandle) -> curt_vfs::PostOpResult<curt_vfs::FileSystemSpace>); };
    (fetch) => {
        $crate::forward_method!(@fetch(caller: &curt_vfs::FsCred<'_>, node: &curt_vfs::NodeHandle, offset: u64, count: u32, how: curt_vfs::FetchOptions, data: &mut Vec<u8>) -> Option<curt_vfs::PostOpResult<curt_vfs::FetchResult>>);
    };
    (lookup) => {
        $crate::forward_method!(@lookup(caller: &curt_vfs::FsCred<'_>, directory: &curt_vfs::NodeHandle, name: &[u8]) -> curt_vfs::PostOpResult<curt_vfs::VfsNode>);
    };
    (read_directory) => {
        $crate::forward_method!(@read_directory(caller: &curt_vfs::FsCred<'_>, directory: &curt_vfs::NodeHandle, cookie: u64, wanted: curt_vfs::ReaddirDetail, visit: &mut dyn FnMut(&curt_vfs::VfsDirEntry<'_>) -> std::ops::ControlFlow<()>) -> curt_vfs::PostOpResult<bool>);
    };
    (set_attributes) => {
        $crate::forward_method!(@set_attributes(caller: &curt_vfs::FsCred<'_>, node: &curt_vfs::NodeHandle, set: &curt_types::SetAttributes, guard: Option<curt_types::Timestamp>) -> curt_vfs::WccResult<()>);
    };
    (access) => {
        $crate::forward_method!(@access(caller: &curt_vfs::FsCred<'_>, node: &curt_vfs::NodeHandle, asked: curt_types::Access) -> curt_vfs::PostOpResult<curt_types::Access>);
    };
    (read_link) => {
        $crate::forward_method!(@read_link(caller: &curt_vfs::FsCred<'_>, node: &curt_vfs::NodeHandle, target: &mut Vec<u8>) -> curt_vfs::PostOpResult<()>);
    };
    (write) => {
        $crate::forward_method!(@write(caller: &curt_vfs::FsCred<'_>, node: &curt_vfs::NodeHandle, offset: u64, data: &[u8], stability: curt_types::Stability) -> curt_vfs::WccResult<curt_vfs::WriteResult>);
    };
    (commit) => {
        $crate::forward_method!(@commit(caller: &curt_vfs::FsCred<'_>, node: &curt_vfs::NodeHandle, offset: u64, count: u32) -> curt_vfs::WccResult<()>);
    };
    (make_permitted) => {
        $crate::forward_method!(@make_permitted(caller: &curt_vfs::FsCred<'_>, directory: &curt_vfs::NodeHandle, name: &[u8], object: curt_vfs::NewNode<'_>, permit: &mut curt_vfs::ObjectPermit<'_>) -> curt_vfs::WccResult<curt_vfs::CreatedNode>);
    };
    (remove_permitted) => {
        $crate::forward_method!(@remove_permitted(caller: &curt_vfs::FsCred<'_>, directory: &curt_vfs::NodeHandle, name: &[u8], kind: curt_vfs::RemovedKind, permit: &mut curt_vfs::ObjectPermit<'_>) -> curt_vfs::WccResult<()>);
    };
    (rename_permitted) => {
        $crate::forward_method!(@rename_permitted(caller: &curt_vfs::FsCred<'_>, from: &curt_vfs::NodeHandle, from_name: &[u8], to: &curt_vfs::NodeHandle, to_name: &[u8], permit: &mut curt_vfs::ObjectPermit<'_>) -> curt_vfs::RenameResult);
    };
    (link) => {
        $crate::forward_method!(@link(caller: &curt_vfs::FsCred<'_>, node: &curt_vfs::NodeHandle, directory: &curt_vfs::NodeHandle, name: &[u8]) -> curt_vfs::LinkResult);
    };
    (@$name:ident($($argument:ident: $kind:ty),*) -> $result:ty) => {
        fn $name(&self, $($argument: $kind),*) -> $result {
            self.tree.$name($($argument),*)
        }
    };
}
