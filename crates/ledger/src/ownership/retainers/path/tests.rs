use super::*;

/// "Most of which are retained by APP → Container → Array × 2 → Audit → Array → String": a third was.
#[test]
fn a_path_has_the_steps_that_most_have() {
    let path = |names: &[&'static str]| -> Path<'static> {
        names.iter().map(|name| Step::of([*name, "", ""])).collect()
    };
    let audits = path(&["APP", "Container", "Array", "Audit", "String"]);
    let drafts = path(&["APP", "Container", "Array", "Draft", "String"]);
    let geo = path(&["APP", "Container", "Hash", "String"]);
    let all = [audits.clone(), audits.clone(), drafts, geo];
    assert_eq!(steps_of_most(&audits, &all), 3);
    assert_eq!(steps_of_most(&audits, &all[..3]), 5);
}

/// The Proc of a subscriber was left out, so that no line was named.
#[test]
fn a_long_path_keeps_the_line_of_its_closure() {
    let names = ["A", "B", "C", "D", "Hash", "Array", "Hash", "H", "I", "J"];
    let path = |closure: usize| -> Path<'_> {
        let place = |index| if index == closure { " (app.rb:7)" } else { "" };
        names.iter().enumerate().map(|(at, name)| Step::of([*name, "", place(at)])).collect()
    };
    assert_eq!(shown(path(9)), "A → B → C → D → … → H → I → J (app.rb:7)");
    assert_eq!(shown(path(5)), "A → B → C → D → Hash → Array (app.rb:7) → Hash → H → I → J");
    assert_eq!(shown(path(4)), "A → B → C → D → Hash (app.rb:7) → … → H → I → J");
    assert_eq!(shown(path(6)), "A → B → C → D → … → Hash (app.rb:7) → H → I → J");
}

/// "ApplicationRecord → Class × 3 → Proc (core.rb:150) → ConnectionHandler → … → Result → Array → String": the query cache of the adapter.
#[test]
fn a_long_path_keeps_the_owner_that_is_nearest_to_the_objects() {
    let path = |names: &[&'static str]| -> Path<'static> {
        names.iter().map(|name| Step::of([*name, "", ""])).collect()
    };
    let cached = [
        "Record", "Class", "Handler", "Map", "Manager", "Pool", "Adapter", "Hash", "Result",
        "Array", "String",
    ];
    assert_eq!(
        shown(path(&cached)),
        "Record → Class → Handler → Map → … → Adapter → Hash → Result → Array → String"
    );
    let containers = ["A", "B", "C", "D", "Array", "Hash", "[:a]", "Hash", "Array", "String"];
    assert_eq!(shown(path(&containers)), "A → B → C → D → … → Hash → Array → String");
}

/// "Thread → […] → String": the name of each logger's tags has a number, and the beginning says whose they are.
#[test]
fn names_of_variables_that_begin_alike_have_their_beginning() {
    let names = |names: [&'static str; 3]| {
        let path = |name| vec![Step::of(["Thread", "", ""]), Step::of(["[", name, "]"])];
        let mut alike = Alike::default();
        names.map(path).into_iter().for_each(|path| alike.add(path));
        alike.typical(false)
    };
    assert_eq!(names([":tags_120", ":tags_121", ":tags_93"]), "Thread → [:tags_…]");
    assert_eq!(names([":\"tags:1\"", ":\"tags:2\"", ":\"tags:3\""]), "Thread → [:\"tags:…\"]");
    assert_eq!(names([":tags_120", ":tags_120", ":tags_120"]), "Thread → [:tags_120]");
    assert_eq!(names([":user", ":store", ":i18n"]), "Thread → […]");
    // The beginning of all of them is no sign by itself.
    assert_eq!(names([":a1", ":a2", ":a3"]), "Thread → […]");
}

/// "Thread → [ → Array → String": some of the objects were in variables of fibers, the others in those of threads.
#[test]
fn a_variable_of_threads_without_a_common_name_has_a_whole_label() {
    let name = |parts| text(&vec![Step::of(["Thread", "", ""]), Step::of(parts)]);
    assert_eq!(name(["[", ":cache", "]"]), "Thread → [:cache]");
    assert_eq!(name(["[", "", "]"]), "Thread → […]");
    assert_eq!(name(["[", ":cache_", SO_ON[0]]), "Thread → [:cache_…]");
    assert_eq!(name(["[", "", ""]), "Thread → […]");
}

/// "(symbols) → String and other roots": a program had a global variable for each job.
#[test]
fn roots_with_numbers_behind_one_name_have_this_name() {
    let typical = |names: [[&'static str; 2]; 3]| {
        let mut alike = Alike::default();
        for [begin, number] in names {
            alike.add(vec![Step::of([begin, number, ""]), Step::of(["String", "", ""])]);
        }
        alike.typical(false)
    };
    let jobs = [["$job_", "1"], ["$job_", "20"], ["$job_", "3"]];
    assert_eq!(typical(jobs), "$job_… → String");
    assert_eq!(typical([["$job_", "1"]; 3]), "$job_1 → String");
}
