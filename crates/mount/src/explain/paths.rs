//! Paths, by number.
//!
//! The names by which objects were reached while a command is explained. Bounded: beyond
//! [`PATHS_MAX`] a name is shown as its directory, and without room for that as the mount.

use std::collections::HashMap;

use curt_linux_model::ObjectId;

/// Maximum number of paths.
pub(super) const PATHS_MAX: usize = 1 << 17;
/// Maximum number of components of a path, in case renamed directories form a cycle.
const DEPTH_MAX: usize = 256;

/// The number of a path; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PathIndex(pub(super) u32);

#[derive(Debug)]
pub(super) struct PathTable {
    all: Vec<(PathIndex, Box<[u8]>)>,
    numbers: HashMap<(PathIndex, Box<[u8]>), PathIndex>,
    nodes: HashMap<ObjectId, PathIndex>,
    room: usize,
}

/// The object at the mount's root.
const ROOT_OBJECT: ObjectId = ObjectId(1);

/// The mount's root.
pub(super) const ROOT: PathIndex = PathIndex(1);

impl PathTable {
    pub(super) fn new(room: usize) -> Self {
        Self {
            all: vec![(PathIndex(0), Box::default()), (PathIndex(0), Box::default())],
            numbers: HashMap::new(),
            nodes: HashMap::from([(ROOT_OBJECT, ROOT)]),
            room,
        }
    }

    /// The path of an object; if it was reached before the explanation began, a path with its
    /// number.
    pub(super) fn of(&mut self, node: ObjectId) -> PathIndex {
        if let Some(known) = self.nodes.get(&node) {
            return *known;
        }
        let name = format!("#{}", node.0);
        let number = self.name(PathIndex(0), name.as_bytes());
        self.reached(node, number);
        number
    }

    /// The path of a name in a directory.
    pub(super) fn name(&mut self, directory: PathIndex, name: &[u8]) -> PathIndex {
        let key = (directory, Box::from(name));
        if let Some(path_index) = self.numbers.get(&key) {
            return *path_index;
        }
        let Some(number) = u32::try_from(self.all.len()).ok().filter(|_| self.all.len() < self.room) else {
            return if directory == PathIndex(0) { ROOT } else { directory };
        };
        self.all.push(key.clone());
        self.numbers.insert(key, PathIndex(number));
        PathIndex(number)
    }

    /// Records that an object was reached by this path.
    pub(super) fn reached(&mut self, node: ObjectId, path: PathIndex) {
        if node.0 != 0
            && node != ROOT_OBJECT
            && (self.nodes.len() < self.room || self.nodes.contains_key(&node))
        {
            self.nodes.insert(node, path);
        }
    }

    /// The path as text, from the mount's root.
    pub(super) fn text(&self, path: PathIndex) -> String {
        if path == ROOT {
            return "/".to_owned();
        }
        let mut names = Vec::new();
        let mut at = path;
        while let Some((above, name)) = self.all.get(at.0 as usize)
            && at.0 > ROOT.0
            && names.len() < DEPTH_MAX
        {
            names.push(String::from_utf8_lossy(name));
            at = *above;
        }
        names.reverse();
        match at {
            ROOT => format!("/{}", names.join("/")),
            _ => names.join("/"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_begins_at_the_root() {
        let mut paths = PathTable::new(PATHS_MAX);
        let directory = paths.name(ROOT, b"src");
        paths.reached(ObjectId(5), directory);
        let five = paths.of(ObjectId(5));
        let file = paths.name(five, b"main.c");
        assert_eq!(paths.text(file), "/src/main.c");
        assert_eq!(paths.text(ROOT), "/");
        assert_eq!(paths.name(directory, b"main.c"), file);
        let stranger = paths.of(ObjectId(77));
        let inside = paths.name(stranger, b"x");
        assert_eq!((paths.text(stranger), paths.text(inside)), ("#77".into(), "#77/x".into()));
    }

    #[test]
    fn beyond_the_limit_a_name_is_shown_as_its_directory() {
        let mut paths = PathTable::new(4);
        let directory = paths.name(ROOT, b"a");
        let last = paths.name(directory, b"last");
        assert_eq!(paths.text(last), "/a/last");
        assert_eq!(paths.name(directory, b"too many"), directory);
        assert_eq!(paths.of(ObjectId(9)), ROOT);
        (10..100).for_each(|node| paths.reached(ObjectId(node), last));
        assert!(paths.nodes.len() <= 4 && paths.all.len() <= 4);
    }
}
