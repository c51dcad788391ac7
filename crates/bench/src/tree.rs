//! The files, directories and symbolic links of a workload's tree.
//!
//! Paths are relative to the tree's top, without a leading `/`, without `.` and `..`; others are
//! rejected, so that creating a tree cannot leave it.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead};

use crate::content::ContentPattern;

/// The type of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeEntryKind {
    /// A directory.
    Directory,
    /// A regular file; its content follows from its path.
    File {
        /// The file's size in bytes.
        size: u64,
    },
    /// A symbolic link.
    Link {
        /// The link's target.
        target: String,
    },
}

/// A directory, file or link of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEntry {
    /// Its path below the tree's top.
    pub path: String,
    /// Its type.
    pub kind: TreeEntryKind,
}

impl TreeEntry {
    /// The path of its directory, `""` for the top.
    #[must_use]
    pub fn parent(&self) -> &str {
        split(&self.path).0
    }
    /// Its name in the directory.
    #[must_use]
    pub fn name(&self) -> &str {
        split(&self.path).1
    }
}

/// Why a tree could not be parsed.
#[derive(Debug, thiserror::Error)]
pub enum TreeParseError {
    /// The lines could not be read.
    #[error("the tree cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A line is malformed.
    #[error("line {line} of the tree: {why}")]
    Line {
        /// The line number, from 1.
        line: usize,
        /// The error.
        why: &'static str,
    },
}

/// A tree: its entries, parents before children.
#[derive(Debug, Default)]
pub struct WorkloadTree {
    entries: Vec<TreeEntry>,
    by_path: HashMap<String, usize>,
    children: BTreeMap<String, Vec<usize>>,
}

impl WorkloadTree {
    /// Parses the lines of a tree: `d PATH`, `f SIZE PATH`, `l TARGET PATH`. Directories that occur
    /// only as a parent are added.
    ///
    /// # Errors
    /// Malformed lines, and paths that would leave the tree or occur twice.
    pub fn parse(lines: impl BufRead) -> Result<Self, TreeParseError> {
        let mut tree = Self::default();
        tree.children.insert(String::new(), Vec::new());
        for (number, line) in lines.lines().enumerate() {
            let (path, kind) =
                parse_line(&line?).map_err(|why| TreeParseError::Line { line: number + 1, why })?;
            tree.add(path, kind).map_err(|why| TreeParseError::Line { line: number + 1, why })?;
        }
        Ok(tree)
    }

    fn add(&mut self, path: String, kind: TreeEntryKind) -> Result<(), &'static str> {
        if let Some(&known) = self.by_path.get(&path) {
            // A directory may have been added as a parent before its own line.
            let again =
                kind == TreeEntryKind::Directory && self.entries[known].kind == TreeEntryKind::Directory;
            return if again { Ok(()) } else { Err("the path is there twice") };
        }
        let parent = split(&path).0;
        if !self.children.contains_key(parent) {
            self.add(parent.to_owned(), TreeEntryKind::Directory)?;
        }
        let index = self.entries.len();
        let siblings = self.children.get_mut(split(&path).0).ok_or("a file is used as a directory")?;
        siblings.push(index);
        if kind == TreeEntryKind::Directory {
            self.children.insert(path.clone(), Vec::new());
        }
        self.by_path.insert(path.clone(), index);
        self.entries.push(TreeEntry { path, kind });
        Ok(())
    }

    /// All entries, each directory before its contents.
    #[must_use]
    pub fn entries(&self) -> &[TreeEntry] {
        &self.entries
    }

    /// The entry at exactly `path`.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&TreeEntry> {
        self.by_path.get(path).map(|&index| &self.entries[index])
    }

    /// The entries of the directory at `path` (`""`: the top); `None` if it is not a directory.
    pub fn children(&self, path: &str) -> Option<impl ExactSizeIterator<Item = &TreeEntry>> {
        self.children.get(path).map(|indices| indices.iter().map(|&index| &self.entries[index]))
    }

    /// Total size of the files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.entries
            .iter()
            .map(|entry| if let TreeEntryKind::File { size } = entry.kind { size } else { 0 })
            .sum()
    }

    /// The object of a path of a trace: `.`, `..` and links are followed, a link as last component
    /// only if `follow`. `None` if it does not exist.
    #[must_use]
    pub fn resolve(&self, path: &str, follow: bool) -> Option<ResolvedPath<'_>> {
        let mut links_left = 40; // what Linux follows before ELOOP
        self.walk(String::new(), path, follow, &mut links_left)
    }

    fn walk(
        &self,
        mut at: String,
        path: &str,
        follow: bool,
        links_left: &mut u32,
    ) -> Option<ResolvedPath<'_>> {
        let mut components = path.split('/').filter(|name| !name.is_empty() && *name != ".").peekable();
        while let Some(name) = components.next() {
            if name == ".." {
                at.truncate(split(&at).0.len());
                continue;
            }
            let next = join(&at, name);
            let entry = self.get(&next)?;
            let last = components.peek().is_none();
            match &entry.kind {
                TreeEntryKind::Link { target } if !last || follow => {
                    *links_left = links_left.checked_sub(1)?;
                    if target.starts_with('/') {
                        return None;
                    }
                    at = match self.walk(at, target, true, links_left)? {
                        ResolvedPath::Top => String::new(),
                        ResolvedPath::Entry(entry) => entry.path.clone(),
                    };
                }
                TreeEntryKind::Directory => at = next,
                TreeEntryKind::File { .. } | TreeEntryKind::Link { .. } if last => {
                    return Some(ResolvedPath::Entry(entry));
                }
                TreeEntryKind::File { .. } | TreeEntryKind::Link { .. } => return None,
            }
        }
        if at.is_empty() { Some(ResolvedPath::Top) } else { self.get(&at).map(ResolvedPath::Entry) }
    }
}

/// The object of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolvedPath<'a> {
    /// The tree's top directory.
    Top,
    /// An entry below it.
    Entry(&'a TreeEntry),
}

impl<'a> ResolvedPath<'a> {
    /// The file's size and content, if it is a regular file.
    #[must_use]
    pub fn file(self) -> Option<(u64, ContentPattern)> {
        match self {
            Self::Entry(TreeEntry { path, kind: TreeEntryKind::File { size } }) => {
                Some((*size, ContentPattern::of(path.as_bytes())))
            }
            Self::Top | Self::Entry(_) => None,
        }
    }

    /// The path of the directory, `""` for the top, if it is one.
    #[must_use]
    pub fn directory(self) -> Option<&'a str> {
        match self {
            Self::Top => Some(""),
            Self::Entry(TreeEntry { path, kind: TreeEntryKind::Directory }) => Some(path),
            Self::Entry(_) => None,
        }
    }
}

/// The path of `name` in the directory `parent`.
fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") }
}

/// A path's directory and last component.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn parse_line(line: &str) -> Result<(String, TreeEntryKind), &'static str> {
    let (kind, rest) = line.split_once(' ').ok_or("it has one word only")?;
    let (path, kind) = match kind {
        "d" => (rest, TreeEntryKind::Directory),
        "f" => {
            let (size, path) = rest.split_once(' ').ok_or("a file needs a size and a path")?;
            (path, TreeEntryKind::File { size: size.parse().map_err(|_| "the size is no number")? })
        }
        "l" => {
            let (target, path) = rest.split_once(' ').ok_or("a link needs a target and a path")?;
            (path, TreeEntryKind::Link { target: target.to_owned() })
        }
        _ => return Err("it begins neither with d, f nor l"),
    };
    if path.split('/').any(|name| name.is_empty() || name == "." || name == ".." || name.contains('\0')) {
        return Err("the path would leave the tree or is no path");
    }
    Ok((path.to_owned(), kind))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

    use super::*;

    fn tree(text: &str) -> WorkloadTree {
        WorkloadTree::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn parents_come_before_children_even_when_never_named() {
        let tree = tree("f 3 a/b/c\nd a\nf 5 d e\n");
        let paths: Vec<_> = tree.entries().iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!(paths, ["a", "a/b", "a/b/c", "d e"]);
        assert_eq!(tree.bytes(), 8);
        let top: Vec<_> = tree.children("").unwrap().map(TreeEntry::name).collect();
        assert_eq!(top, ["a", "d e"]);
        assert!(tree.children("d e").is_none());
    }

    #[test]
    fn lines_that_would_leave_the_tree_or_say_nothing_are_refused() {
        for bad in [
            "d ../x",
            "d /etc",
            "f 1 a/../b",
            "f x a",
            "f 1",
            "q a",
            "d",
            "d a//b",
            "d .",
            "f 1 a\nf 2 a",
            "f 1 a\nf 1 a/b",
        ] {
            assert!(WorkloadTree::parse(bad.as_bytes()).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn paths_resolve_through_dots_and_links() {
        let tree =
            tree("f 7 a/b/file\nl b a/link\nl ../a/link/file over/there\nl loop loop\nl /etc/passwd out\n");
        let at = |path: &str| match tree.resolve(path, true) {
            Some(ResolvedPath::Entry(entry)) => entry.path.as_str(),
            Some(ResolvedPath::Top) => "",
            None => "nowhere",
        };
        for (path, leads) in [
            (".", ""),
            ("a/..", ""),
            ("a/./b/../b/file", "a/b/file"),
            ("a/link/file", "a/b/file"),
            ("over/there", "a/b/file"),
            ("a/link", "a/b"),
            ("loop", "nowhere"),
            ("out", "nowhere"),
            ("a/b/file/x", "nowhere"),
            ("a/none", "nowhere"),
        ] {
            assert_eq!(at(path), leads, "{path}");
        }
        let link = tree.resolve("a/link", false).unwrap();
        assert!(matches!(link, ResolvedPath::Entry(TreeEntry { kind: TreeEntryKind::Link { .. }, .. })));
    }
}
