//! The maximum length of a record, by the procedure that it calls: known long before the whole record has arrived.

use curt_xdr::Decoder;

/// The longest header of a call that decodes, in bytes: six words, and credential and verifier of the largest bodies.
pub const CALL_HEADER_MAX: usize = 6 * 4 + 2 * (8 + crate::auth::AUTH_BODY_MAX);

/// How long the records of each program may be.
#[derive(Clone, Debug)]
pub struct RecordBounds {
    programs: Vec<ProgramBounds>,
    others: usize,
}

/// How long the records of one program's procedures may be.
#[derive(Clone, Debug)]
pub struct ProgramBounds {
    /// The program's number.
    pub program: u32,
    /// The longest record of each procedure in bytes, header included, by the procedure's number. What has no number here
    /// has no arguments that are worth gathering.
    pub procedures: Vec<usize>,
}

impl ProgramBounds {
    fn longest(&self, others: usize) -> usize {
        self.procedures.iter().copied().max().unwrap_or(0).max(others)
    }
}

impl Default for RecordBounds {
    /// No program is known.
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl RecordBounds {
    /// The bounds of `programs`; of others, only what a refusal needs is gathered.
    #[must_use]
    pub const fn new(programs: Vec<ProgramBounds>) -> Self {
        Self {
            programs,
            others: OTHERS_MAX,
        }
    }

    /// The maximum length of the record that begins with these bytes: the more of its header is there, the smaller the bound.
    pub(super) fn limit(&self, beginning: &[u8]) -> usize {
        let longest = || {
            self.programs
                .iter()
                .map(|bounds| bounds.longest(self.others))
                .max()
        };
        let header = &mut Decoder::new(beginning);
        // The xid, the type and the version of RPC say nothing of the length.
        let Some(program) = word(header, 3) else {
            return longest().unwrap_or(self.others);
        };
        let Some(bounds) = self.programs.iter().find(|bounds| bounds.program == program) else {
            return self.others;
        };
        let Some(procedure) = word(header, 1) else {
            return bounds.longest(self.others);
        };
        let procedure = usize::try_from(procedure).unwrap_or(usize::MAX);
        bounds.procedures.get(procedure).copied().unwrap_or(self.others)
    }
}

/// What a call of a program or procedure that is not served may have, so that it is refused and not cut off, in bytes.
const OTHERS_MAX: usize = 4096;

/// The word after the next `skipped` ones, if it is there.
fn word(header: &mut Decoder<'_>, skipped: usize) -> Option<u32> {
    for _ in 0..skipped {
        header.u32().ok()?;
    }
    header.u32().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_bounded_by_its_procedure_as_soon_as_that_is_known() {
        let bounds = RecordBounds::new(vec![
            ProgramBounds {
                program: 100_003,
                procedures: vec![900, 1000, 1 << 20],
            },
            ProgramBounds {
                program: 100_005,
                procedures: vec![1000, 5000],
            },
        ]);
        let header =
            |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_be_bytes()).collect() };
        let call = |program, procedure| header(&[1, 0, 2, program, 3, procedure]);
        assert_eq!(bounds.limit(&call(100_003, 0)), 900);
        assert_eq!(bounds.limit(&call(100_003, 1)), 1000);
        assert_eq!(bounds.limit(&call(100_003, 2)), 1 << 20);
        assert_eq!(bounds.limit(&call(100_003, 3)), 4096);
        assert_eq!(bounds.limit(&call(100_003, u32::MAX)), 4096);
        assert_eq!(bounds.limit(&call(100_005, 1)), 5000);
        assert_eq!(bounds.limit(&call(1, 1)), 4096);
        // What is not there yet.
        assert_eq!(bounds.limit(&call(100_005, 1)[..23]), 5000);
        assert_eq!(bounds.limit(&call(100_003, 1)[..16]), 1 << 20);
        assert_eq!(bounds.limit(&call(100_005, 1)[..15]), 1 << 20);
        assert_eq!(bounds.limit(&[]), 1 << 20);
        assert_eq!(RecordBounds::default().limit(&[]), 4096);
    }
}
