//! Names of refs: bytes become a name that may be shown to a client, or are refused.
//!
//! Opens nothing. Invariant: no sound name holds a byte that ends or splits a line of the protocol.
//! Source: git-check-ref-format(1), rules 1 to 9. Read first: `names_are_sound_where_git_says_so`.

/// Whether `name` is a full name below `refs/` that git accepts. Bytes beyond ASCII are as good as any.
pub fn is_sound(name: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(b"refs/") else { return false };
    let mut before = b'/';
    for (at, byte) in rest.iter().enumerate() {
        let bad = match byte {
            0..=b' ' | 0x7f | b'~' | b'^' | b':' | b'?' | b'*' | b'[' | b'\\' => true,
            b'.' => matches!(before, b'.' | b'/'),
            // A lock file is no ref, and neither is what lies below a folder of that name.
            b'/' => before == b'/' || (before == b'k' && is_lock(rest.get(..at))),
            b'{' => before == b'@',
            _ => false,
        };
        if bad {
            return false;
        }
        before = *byte;
    }
    !matches!(before, b'/' | b'.') && !is_lock(Some(rest))
}

fn is_lock(name: Option<&[u8]>) -> bool {
    name.is_some_and(|name| name.ends_with(b".lock"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gix_ref::bstr::ByteSlice;
    use proptest::prelude::*;

    #[test]
    fn names_are_sound_where_git_says_so() {
        for (name, sound) in [
            (&b"refs/heads/a"[..], true),
            (b"refs/a", true),
            (b"refs/heads/\xff\xfe", true),
            (b"refs/heads/a.b", true),
            (b"refs/heads/@", true),
            (b"refs/heads/a.lockx", true),
            (b"refs/heads/-", true),
            (b"refs/heads/a.", false),
            (b"refs/heads/.a", false),
            (b"refs/heads/a..b", false),
            (b"refs/heads/a.lock", false),
            (b"refs/heads/a.lock/b", false),
            (b"refs/heads/a@{b", false),
            (b"refs/heads/a\nb", false),
            (b"refs/heads/a b", false),
            (b"refs/heads/a\\b", false),
            (b"refs/heads//a", false),
            (b"refs/heads/", false),
            (b"refs/", false),
            (b"HEAD", false),
        ] {
            assert_eq!(is_sound(name), sound, "{}", name.as_bstr());
            if name.iter().all(|byte| *byte != 0) {
                use std::os::unix::ffi::OsStrExt;
                let mut stock = std::process::Command::new("git");
                stock.arg("check-ref-format").arg(std::ffi::OsStr::from_bytes(name));
                let stock = stock.status().unwrap().success();
                assert_eq!(stock, sound, "git on {}", name.as_bstr());
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_as_gix_judges_them(tail in "[a@{}./ lock~\\\\*\\x00-\\x21]{0,12}", raw in any::<Vec<u8>>()) {
            for tail in [tail.as_bytes(), &raw] {
                let name = [b"refs/".as_slice(), tail].concat();
                prop_assert_eq!(is_sound(&name), <&gix_ref::FullNameRef>::try_from(name.as_bstr()).is_ok());
            }
        }
    }
}
