//! temporary
use super::pace::Pace;
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    #[error("bad")]
    Bad,
}
pub fn varint(b: &[u8], at: &mut usize) -> Option<u64> {
    let mut v = 0u64;
    let mut s = 0;
    loop {
        let c = *b.get(*at)?;
        *at += 1;
        v |= u64::from(c & 127) << s;
        s += 7;
        if c < 128 {
            return Some(v);
        }
        if s > 56 {
            return None;
        }
    }
}
pub fn sizes(b: &[u8]) -> Result<(u64, u64, usize), DeltaError> {
    let mut a = 0;
    let x = varint(b, &mut a).ok_or(DeltaError::Bad)?;
    let y = varint(b, &mut a).ok_or(DeltaError::Bad)?;
    Ok((x, y, a))
}
pub async fn apply_paced(base: &[u8], d: &[u8], limit: u64, pace: &Pace) -> Result<Vec<u8>, DeltaError> {
    let (bs, rs, mut a) = sizes(d)?;
    if bs != base.len() as u64 || rs > limit {
        return Err(DeltaError::Bad);
    }
    let mut out = Vec::with_capacity(rs as usize);
    while a < d.len() {
        let c = d[a];
        a += 1;
        if c & 128 != 0 {
            let mut o = 0usize;
            let mut n = 0usize;
            for i in 0..4 {
                if c >> i & 1 == 1 {
                    o |= (d[a] as usize) << (8 * i);
                    a += 1;
                }
            }
            for i in 0..3 {
                if c >> (4 + i) & 1 == 1 {
                    n |= (d[a] as usize) << (8 * i);
                    a += 1;
                }
            }
            if n == 0 {
                n = 0x10000
            }
            out.extend_from_slice(base.get(o..o + n).ok_or(DeltaError::Bad)?);
        } else {
            if c == 0 {
                return Err(DeltaError::Bad);
            }
            out.extend_from_slice(d.get(a..a + c as usize).ok_or(DeltaError::Bad)?);
            a += c as usize;
        }
    }
    if out.len() as u64 != rs {
        return Err(DeltaError::Bad);
    }
    pace.work(out.len() / 8).await;
    Ok(out)
}
