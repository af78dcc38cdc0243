use std::io::{Cursor, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

/// A program's own dump: the class Cache, whose array refers to these entries.
fn own(entries: &[(u64, &str)]) -> String {
    let references: Vec<String> = entries.iter().map(|(at, _)| format!("\"{at:#x}\"")).collect();
    let mut lines = [
        r#"{"type":"ROOT", "root":"machine_context", "references":["0x40"]}"#.to_owned(),
        r#"{"type":"ROOT", "root":"vm", "references":["0x10", "0x18"]}"#.to_owned(),
        r#"{"address":"0x18", "type":"IMEMO", "class":"0x5", "imemo_type":"constcache", "references":["0x40"]}"#.to_owned(),
        r#"{"address":"0x10", "type":"CLASS", "class":"0x11", "name":"Cache", "references":["0x30"], "memsize":500}"#.to_owned(),
        r#"{"address":"0x20", "type":"CLASS", "name":"Entry", "memsize":500}"#.to_owned(),
        r#"{"address":"0x28", "type":"CLASS", "superclass":"0x20", "singleton":true, "memsize":500}"#.to_owned(),
        r#"{"address":"0x30", "type":"ARRAY", "class":"0x99", "references":["0x40"], "memsize":40}"#.to_owned(),
        format!(
            r#"{{"address":"0x40", "type":"OBJECT", "class":"0x28", "references":[{}], "memsize":80}}"#,
            references.join(", ")
        ),
        r#"{"address":"0x7000", "type":"OBJECT", "class":"0x20", "memsize":4000, "file":"garbage"}"#.to_owned(),
    ]
    .join("\n")
        + "\n";
    for (at, fields) in entries {
        lines += &format!(
            r#"{{"address":"{at:#x}", "type":"OBJECT", "class":"0x20", "memsize":64{fields}}}"#
        );
        lines += "\n";
    }
    lines
}

fn compare(dumps: &[&[u8]]) -> Result<DumpDiff, (usize, DumpError)> {
    let open = |(number, bytes): (usize, &&[u8])| OpenDump {
        name: format!("heap-{}", number + 1),
        file: Box::new(Cursor::new(bytes.to_vec())),
    };
    compare_dumps(&mut dumps.iter().enumerate().map(open).collect::<Vec<_>>())
}

fn count(objects: u64, bytes: u64) -> DumpCount {
    DumpCount { objects, bytes }
}

#[test]
fn what_was_born_between_two_dumps_and_stays_leaks() {
    let traced = r#", "file":"app/\u0063ache.rb", "line":7, "generation":5"#;
    let first = own(&[(0x100, "")]);
    let second = own(&[(0x100, ""), (0x200, traced), (0x300, traced), (0x400, traced)]);
    // One was freed; another has its slot, as the later generation says.
    let later = traced.replace(":5", ":6");
    let third = own(&[(0x100, ""), (0x200, traced), (0x300, &later), (0x500, &later)]);
    let mut zipped = GzEncoder::new(Vec::new(), Compression::fast());
    zipped.write_all(second.as_bytes()).unwrap();
    let zipped = zipped.finish().unwrap();
    let diff = compare(&[first.as_bytes(), &zipped, third.as_bytes()]).unwrap();
    assert_eq!((diff.new, diff.gone), (count(1, 64), None));
    assert_eq!(diff.dumps.iter().map(|it| it.objects).collect::<Vec<_>>(), [8, 11, 11]);
    let [group] = &diff.groups[..] else { panic!("{:?}", diff.groups) };
    assert_eq!((&*group.class, group.line.as_deref()), ("Entry", Some("app/cache.rb:7")));
    assert_eq!((group.root.as_deref(), group.example.as_deref()), (Some("Cache"), Some("0x200")));
    // Not over the cache or from the stack, which are nearer. An object of a singleton class has the name of the class above it.
    assert_eq!(group.path, ["vm", "Cache", "ARRAY", "Entry", "Entry"]);

    let diff = compare(&[&zipped, third.as_bytes()]).unwrap();
    assert_eq!((diff.new, diff.gone), (count(2, 128), Some(count(2, 128))));
    assert_eq!(diff.groups.len(), 1);
}

#[test]
fn roots_and_paths_are_those_that_rbloat_has_written() {
    let line = |at: &str, owner: &str, more: &str| {
        format!(
            r#"{{"address":"{at}", "type":"OBJECT", "class":"0x9", "memsize":40, "rbloat":{{"owner":"{owner}"{more}}}}}"#
        ) + "\n"
    };
    let root = r#", "retaining_root":"Store::ALL""#;
    let module = r#"{"address":"0x900", "type":"MODULE", "name":"Store", "memsize":40}"#;
    let of_module = format!(r#"{root}, "parent":"0x900""#);
    let list = format!("{module}\n{}", line("0x1000", "Array", &of_module));
    let mut second = list.clone();
    for at in 0..40 {
        let parent = 0x1000 + at * 16;
        second += &line(
            &format!("{:#x}", parent + 16),
            "Link",
            &format!(r#"{root}, "parent":"{parent:#x}""#),
        );
    }
    second += &line("0xf000", "Link", "");
    let first = list.clone() + &line("0x1010", "Link", "");
    let diff = compare(&[first.as_bytes(), second.as_bytes(), second.as_bytes()]).unwrap();
    assert_eq!(diff.new, count(40, 1600), "garbage does not count");
    let group = &diff.groups[0];
    assert_eq!((&*group.class, group.root.as_deref()), ("Link", Some("Store::ALL")));
    assert_eq!(group.path, ["Store::ALL", "Array", "Link"]);
    let diff = compare(&[second.as_bytes(), list.as_bytes()]).unwrap();
    let group = &diff.groups[0];
    assert_eq!((group.new, group.gone, group.change()), (count(0, 0), count(40, 1600), -1600));
    assert_eq!((group.example.as_deref(), &group.path[..]), (None, &[][..]));
}

#[test]
fn a_long_path_and_one_that_has_no_end_are_cut() {
    let link = |at: u64, parent: u64| {
        format!(
            r#"{{"address":"{at:#x}", "type":"OBJECT", "rbloat":{{"owner":"L{at}", "retaining_root":"R", "parent":"{parent:#x}"}}}}"#
        ) + "\n"
    };
    let chain: String = (2..40).rev().map(|at| link(at, at - 1)).collect();
    let first = link(1, 0);
    let diff = compare(&[first.as_bytes(), (first.clone() + &chain).as_bytes()]).unwrap();
    let group = diff.groups.iter().find(|it| it.class == "L39").unwrap();
    assert_eq!(group.path.len(), 1 + 13);
    assert_eq!((&*group.path[1], &*group.path[7], &*group.path[13]), ("L1", "…", "L39"));
    let circle = link(2, 3) + &link(3, 2);
    let diff = compare(&[first.as_bytes(), circle.as_bytes()]).unwrap();
    let group = diff.groups.iter().find(|it| it.class == "L2").unwrap();
    assert_eq!(group.path.len(), 1 + 13);
}

#[test]
fn other_and_damaged_files_are_errors() {
    let whole = own(&[(0x100, "")]);
    let mut zipped = GzEncoder::new(Vec::new(), Compression::fast());
    zipped.write_all(own(&[(0x100, ""), (0x200, "")]).as_bytes()).unwrap();
    let zipped = zipped.finish().unwrap();
    let error = |bytes: &[u8]| {
        let (number, error) = compare(&[whole.as_bytes(), bytes]).unwrap_err();
        assert_eq!(number, 1);
        error
    };
    for other in
        ["", "\n", "text\n", "[1]\n", "{\"schema\":3}\n", "{\"type\":\"ROOT\"}\n", "\x7fELF"]
    {
        assert!(matches!(error(other.as_bytes()), DumpError::NoDump), "{other:?}");
    }
    assert!(matches!(error(&whole.as_bytes()[..whole.len() - 9]), DumpError::Truncated));
    assert!(matches!(error(&zipped[..zipped.len() - 20]), DumpError::Truncated));
    assert!(matches!(error(&[&zipped[..40], &[7; 60]].concat()), DumpError::Unreadable(_)));
    // dump_all does not escape all names, and a text may be in any encoding.
    let odd = b"{\"address\":\"0x1\", \"type\":\"DATA\", \"struct\":\"a\"b\"}\n{\"address\":\"zz\", \"type\":\"OBJECT\"}\n\
        {\"address\":\"0x2\", \"type\":\"STRING\", \"class\":\"0x3\", \"value\":\"\xff\", \"file\":\"\xfe\", \
        \"line\":1, \"memsize\":18446744073709551615}\n";
    let diff = compare(&[whole.as_bytes(), &[whole.as_bytes(), odd].concat()]).unwrap();
    assert_eq!((diff.dumps[1].unreadable_lines, diff.new), (1, count(0, 0)));
    let without_roots =
        [b"{\"address\":\"0x1\", \"type\":\"ARRAY\"}\n", &odd[odd.len() - 118..]].concat();
    let start = without_roots.iter().rposition(|it| *it == b'{').unwrap();
    let diff = compare(&[whole.as_bytes(), &without_roots[start..]]).unwrap();
    assert_eq!(
        (diff.new, diff.groups[0].line.as_deref()),
        (count(1, u64::MAX), Some("\u{fffd}:1"))
    );
}
