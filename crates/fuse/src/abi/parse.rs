//! Decoding of the kernel's structures in requests.
//!
//! Each access is checked against the request's length. Integers are in native byte order.

/// A request that is too short for its operation, or malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request of the kernel does not have the form of its operation")]
pub(crate) struct MalformedRequest;

/// The rest of a request's body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyReader<'a>(&'a [u8]);

impl<'a> BodyReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], MalformedRequest> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(MalformedRequest)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, MalformedRequest> {
        self.fixed().map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, MalformedRequest> {
        self.fixed().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, MalformedRequest> {
        self.fixed().map(u64::from_ne_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, MalformedRequest> {
        self.fixed().map(i64::from_ne_bytes)
    }

    pub(crate) fn skip(&mut self, bytes: usize) -> Result<(), MalformedRequest> {
        self.0 = self.0.get(bytes..).ok_or(MalformedRequest)?;
        Ok(())
    }

    /// A non-empty name that ends with NUL; the NUL is not included.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], MalformedRequest> {
        let text = self.text()?;
        if text.is_empty() { Err(MalformedRequest) } else { Ok(text) }
    }

    /// Bytes that end with NUL; the NUL is not included.
    pub(crate) fn text(&mut self) -> Result<&'a [u8], MalformedRequest> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or(MalformedRequest)?;
        let (text, rest) = self.0.split_at(end);
        self.0 = rest.get(1..).ok_or(MalformedRequest)?;
        Ok(text)
    }

    /// Exactly `length` bytes.
    pub(crate) fn bytes(&mut self, length: u32) -> Result<&'a [u8], MalformedRequest> {
        let length = usize::try_from(length).map_err(|_| MalformedRequest)?;
        let (head, rest) = self.0.split_at_checked(length).ok_or(MalformedRequest)?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_bytes_are_malformed_and_never_a_panic() {
        for length in 0..8 {
            let bytes = vec![1_u8; length];
            assert_eq!(BodyReader::new(&bytes).u64(), Err(MalformedRequest));
            assert_eq!(BodyReader::new(&bytes).name(), Err(MalformedRequest));
        }
        assert_eq!(BodyReader::new(&[1; 8]).bytes(9), Err(MalformedRequest));
    }

    #[test]
    fn names_end_at_their_nul() {
        let mut cursor = BodyReader::new(b"old\0new\0");
        assert_eq!(cursor.name(), Ok(&b"old"[..]));
        assert_eq!(cursor.name(), Ok(&b"new"[..]));
        assert_eq!(cursor.name(), Err(MalformedRequest));
        assert_eq!(BodyReader::new(b"\0").name(), Err(MalformedRequest));
        assert_eq!(BodyReader::new(b"\0").text(), Ok(&b""[..]));
    }
}
