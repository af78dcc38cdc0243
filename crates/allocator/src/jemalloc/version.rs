use image::Memory;
use image::elf::Module;

/// More bytes than the read-only part of any library or interpreter has.
const MAX_BYTES: u64 = 64 << 20;
const PART: usize = 64 << 10;
/// The longest version, such as `5.3.0-0-g54eaed1d8b56b1aa528be3bdd1877e59c56fa90c`.
const MAX_LENGTH: usize = 80;
const HASH: usize = 40;

/// jemalloc's version, such as "5.3.0", from the string that mallctl("version") returns: the release, the number of
/// commits since then, and the commit. `None` if there is no such string, as in builds from a tree without its history.
pub(crate) fn find(memory: &dyn Memory, module: &Module) -> Option<String> {
    let end = module.range.end.min(module.range.start.offset(MAX_BYTES));
    let mut bytes = vec![0; PART + MAX_LENGTH];
    let mut at = module.range.start;
    while at < end {
        // Parts overlap, since a string may cross the end of one.
        let wanted = bytes.len().min((end - at) as usize);
        let read = memory.read(at, &mut bytes[..wanted]);
        if let Some(version) = find_in(&bytes[..read]) {
            return Some(version);
        }
        at = at.offset(PART as u64);
    }
    None
}

fn find_in(bytes: &[u8]) -> Option<String> {
    let mut hyphens = bytes.windows(2).enumerate().filter(|(_, pair)| pair == b"-g");
    hyphens.find_map(|(hyphen, _)| {
        let is_hash = |hash: &[u8]| hash.iter().all(u8::is_ascii_hexdigit);
        bytes.get(hyphen + 2..hyphen + 2 + HASH).filter(|hash| is_hash(hash))?;
        let before = &bytes[..hyphen];
        let is_part = |byte: &u8| byte.is_ascii_digit() || *byte == b'-' || *byte == b'.';
        let start = before.iter().rposition(|byte| !is_part(byte)).map_or(0, |last| last + 1);
        let text = std::str::from_utf8(&before[start..]).ok()?;
        let (release, commits) = text.split_once('-')?;
        let is_number =
            |part: &str| !part.is_empty() && part.len() < 6 && !part.contains(['-', '.']);
        let is_release = release.split('.').count() == 3 && release.split('.').all(is_number);
        (is_release && is_number(commits)).then(|| release.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_told_from_other_text() {
        let hash = "54eaed1d8b56b1aa528be3bdd1877e59c56fa90c";
        let found = |text: String| find_in(text.as_bytes());
        assert_eq!(found(format!("x\05.3.0-0-g{hash}\0y")).as_deref(), Some("5.3.0"));
        assert_eq!(found(format!("a-g b 5.2.1-12-g{hash}")).as_deref(), Some("5.2.1"));
        assert_eq!(found(format!("5.3-0-g{hash}")), None);
        assert_eq!(found(format!("5.3.0-g{hash}")), None);
        assert_eq!(found(format!("5.3.0-0-g{}", &hash[1..])), None);
    }
}
