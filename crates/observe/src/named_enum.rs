//! Enums whose variants have names and meanings.

/// Declares an enum whose variants have a name and a meaning.
#[macro_export]
macro_rules! named_enum {
    ($(#[$outer:meta])* $table:ident { $($(#[$inner:meta])* $row:ident $name:literal $meaning:literal;)* }) => {
        $(#[$outer])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $table {
            $(#[doc = $meaning] $(#[$inner])* $row,)*
        }

        impl $table {
            /// Every row, in the order in which they are printed.
            pub const ALL: [Self; [$($name,)*].len()] = [$(Self::$row,)*];

            /// The position of this row in [`Self::ALL`].
            #[must_use]
            pub const fn index(self) -> usize {
                self as usize
            }

            /// The name, as printed and serialised; never changed once published.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$row => $name,)* }
            }

            /// Its meaning, a sentence.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$row => $meaning,)* }
            }

            /// The row of this name.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|row| row.name() == name)
            }
        }
    };
}
