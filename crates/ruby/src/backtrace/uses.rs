//! The bytecode that uses constants and variables.
//!
//! Up to 2.7 the cache of a constant is a part of its iseq and begins with a serial number, the class reference, and the value
//! (`iseq_inline_cache_entry` in vm_core.h). From 3.0 on it begins with a pointer to an internal object that has the value
//! (`iseq_inline_constant_cache`). An operand of an instruction is the address of the cache. So only code that has run counts, and only
//! the constant that it found. Instructions on variables have the ID of the name among their operands (insns.def).

use std::collections::{BTreeMap, HashMap};

use image::{Image, Memory, Window};
use linux::Address;

use crate::backtrace::closures::methods_with_code;
use crate::backtrace::code::CodeReader;
use crate::backtrace::holders::{Holder, holders};
use crate::layout::class_names::ObjectReader;
use crate::layout::iseq_location::BODY_BYTES;
use crate::layout::line_tables::Instructions;
use crate::model::backtrace::Frame;
use crate::model::code_paths::CodePaths;
use crate::model::imemo::ImemoType;
use crate::model::named_root::{NamedRoot, RootKind};
use crate::model::slot::SlotType;
use crate::object_space::ObjectSpace;
use crate::word::{word, words};

/// Bytes that are read at a time.
const READ_BYTES: usize = 64 << 10;
/// The instructions whose operands are looked up at a time.
const CHUNK: usize = 1 << 18;
/// More uses than a program has of its roots; further ones are left out.
const MAX_USES: usize = 1 << 16;
/// The words of a constant's internal object.
const CACHE_BYTES: usize = 40;
/// The words of a cache in an iseq (up to 2.7).
const INLINE_CACHE_BYTES: usize = 24;
/// The first address that may be mapped.
const FIRST_ADDRESS: u64 = 1 << 16;

/// The places in bytecode that use a constant or variable, each once, in the order of their paths and lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootUses {
    /// The name of the root, or the class and the name of a variable of objects that have large collections: `Cache::STORE`,
    /// `Registry#@rows`.
    pub root: String,
    /// The methods and lines.
    pub places: Vec<Frame>,
}

impl RootUses {
    /// The class whose objects have this variable; `None` for roots.
    #[must_use]
    pub fn class_of_objects(&self) -> Option<&str> {
        self.root.split_once("#@").map(|(class, _)| class)
    }
}

/// Finds the code that uses the arrays, hashes and other objects to which constants and variables refer: classes and strings are left
/// out, as are variables of threads. Of variables of classes and of objects, only methods of that class count, or of one that it inherits
/// from.
///
/// `image` is the one that `space`, `paths` and `roots` were read from, of the same instant.
#[must_use]
pub fn uses_of_roots(
    image: &Image<'_>,
    space: &ObjectSpace,
    paths: &CodePaths,
    roots: &[NamedRoot],
) -> Vec<RootUses> {
    let reader = ObjectReader::new(image, &space.slot_index, &space.slots);
    let Some(mut code) = CodeReader::derive(reader, space, paths) else { return Vec::new() };
    let holders = holders(image, space, code.methods().names());
    let wanted = Wanted::of(image, space, roots, &holders);
    let of_root = |it: &NamedRoot| Subject { name: it.name.clone(), owners: it.method_owners() };
    let of_holder = |it: &Holder| Subject { name: it.name(), owners: Some(it.method_owners()) };
    let subjects = roots.iter().map(of_root).chain(holders.iter().map(of_holder));
    let subjects: Vec<Subject> = subjects.collect();
    let (methods, hits) = (HashMap::new(), Vec::new());
    let mut found = Finder { space, reader, code, wanted, methods, hits };
    found.search();
    found.uses(&subjects)
}

/// A root, or a variable of objects.
struct Subject {
    name: String,
    /// The owners of the methods that use it, as labels begin: `Cache#`. `None` for any code.
    owners: Option<Vec<String>>,
}

/// What operands are compared with: the numbers of subjects, first roots and then holders, by what stands for them.
#[derive(Default)]
struct Wanted {
    /// By the address of the internal object with the value, or, up to 2.7, of the value.
    constants: HashMap<Address, Vec<u32>>,
    /// By the ID of the name.
    variables: HashMap<u64, Vec<u32>>,
    has_cache_objects: bool,
}

/// An operand that refers to a subject.
#[derive(Debug, Clone, Copy)]
struct Hit {
    /// The ID of a name, or the address of what stands for constants. No ID is an address of memory.
    key: u64,
    iseq: u32,
    position: u64,
}

struct Finder<'a> {
    space: &'a ObjectSpace,
    reader: ObjectReader<'a>,
    code: CodeReader,
    wanted: Wanted,
    /// The method entry of each iseq that is a method's.
    methods: HashMap<Address, Address>,
    hits: Vec<Hit>,
}

impl Wanted {
    fn of(image: &Image<'_>, space: &ObjectSpace, roots: &[NamedRoot], holders: &[Holder]) -> Self {
        let mut wanted = Self::default();
        for (index, holder) in (roots.len() as u32..).zip(holders) {
            wanted.variables.entry(holder.id).or_default().push(index);
        }
        let mut of_values: HashMap<Address, Vec<u32>> = HashMap::new();
        for (index, root) in (0..).zip(roots) {
            let holds_others = space.slots.get(root.value as usize).is_some_and(|slot| {
                matches!(
                    slot.kind(),
                    SlotType::ARRAY
                        | SlotType::HASH
                        | SlotType::OBJECT
                        | SlotType::STRUCT
                        | SlotType::DATA
                )
            });
            match (root.kind, root.id) {
                _ if !holds_others => {}
                (RootKind::Constant, _) => {
                    let at = space.slot_address(root.value as usize);
                    at.into_iter().for_each(|at| of_values.entry(at).or_default().push(index));
                }
                (_, Some(id)) => wanted.variables.entry(id).or_default().push(index),
                (_, None) => {}
            }
        }
        for slot in space.live_imemos(ImemoType::Constcache) {
            wanted.has_cache_objects = true;
            let Some(at) = space.slot_address(slot as usize) else { continue };
            let mut bytes = [0; CACHE_BYTES];
            let read = image.read(at, &mut bytes);
            let of_it = words(&bytes[..read]).skip(1).find_map(|it| of_values.get(&Address(it)));
            wanted.constants.extend(of_it.map(|roots| (at, roots.clone())));
        }
        if !wanted.has_cache_objects {
            wanted.constants = of_values;
        }
        wanted
    }

    /// What stands for the constant whose cache is at this operand.
    fn at_cache(&self, caches: &mut Window<'_>, at: Address) -> Option<u64> {
        let bytes = if self.has_cache_objects { 8 } else { INLINE_CACHE_BYTES };
        let bytes = caches.bytes(at, bytes).ok()?;
        let key = word(bytes, bytes.len() - 8);
        self.constants.contains_key(&Address(key)).then_some(key)
    }

    /// The subjects that this key stands for.
    fn subjects(&self, key: u64) -> &[u32] {
        let found = self.variables.get(&key).or_else(|| self.constants.get(&Address(key)));
        found.map_or(&[], Vec::as_slice)
    }
}

impl Finder<'_> {
    /// Compares the operands of all bytecode.
    fn search(&mut self) {
        let image = self.reader.image;
        let (mut bodies, mut code) =
            (Window::new(image, READ_BYTES), Window::new(image, READ_BYTES));
        let mut pointers: Vec<(Address, u32, u64)> = Vec::new();
        for (index, iseq) in (0..).zip(&self.space.iseqs) {
            let Ok(body) = bodies.bytes(iseq.body(), 16) else { continue };
            let Some(instructions) = Instructions::of(body) else { continue };
            let (start, count) = instructions.memory();
            let mut position = 0;
            while position < count {
                let words_read = (count - position).min((READ_BYTES / 16) as u64);
                let at = start.offset(position * 8);
                let Ok(bytes) = code.bytes(at, words_read as usize * 8) else { break };
                for (position, operand) in (position..).zip(words(bytes)) {
                    if self.wanted.variables.contains_key(&operand) {
                        self.hits.push(Hit { key: operand, iseq: index, position });
                    }
                    let at = Address(operand);
                    let may_be_cache = operand >= FIRST_ADDRESS
                        && at.is_aligned(8)
                        && !self.space.interpreter.range.contains(&at);
                    if may_be_cache {
                        pointers.push((at, index, position));
                    }
                }
                position += words_read;
            }
            if pointers.len() >= CHUNK {
                self.look_up(&mut pointers);
            }
            if self.hits.len() >= MAX_USES {
                return;
            }
        }
        self.look_up(&mut pointers);
    }

    /// Looks for caches at these operands, and forgets them.
    fn look_up(&mut self, pointers: &mut Vec<(Address, u32, u64)>) {
        pointers.sort_unstable();
        let mut caches = Window::new(self.reader.image, READ_BYTES);
        if !self.wanted.constants.is_empty() {
            for &(at, iseq, position) in pointers.iter() {
                let key = self.wanted.at_cache(&mut caches, at);
                self.hits.extend(key.map(|key| Hit { key, iseq, position }));
            }
        }
        pointers.clear();
    }

    /// The places that were found, by the name of the subject.
    fn uses(mut self, subjects: &[Subject]) -> Vec<RootUses> {
        let methods = methods_with_code(self.reader.image, self.space);
        // Others are in C, or are attributes.
        let is_bytecode = |code: Address| {
            self.space.imemo_types.and_then(|types| types.at(self.reader, code))
                == Some(ImemoType::Iseq)
        };
        let methods = methods.into_iter().filter(|it| is_bytecode(it.0));
        self.methods = methods.map(|(code, entry, _)| (code, entry)).collect();
        let mut all: BTreeMap<&str, Vec<Frame>> = BTreeMap::new();
        for hit in std::mem::take(&mut self.hits) {
            let Some(code) = self.space.iseqs.get(hit.iseq as usize) else { continue };
            let Some(iseq) = self.space.slot_address(code.slot() as usize) else { continue };
            let owner = self.owner(iseq, code.body());
            let is_used = |subject: &&Subject| match (&subject.owners, &owner) {
                (None, _) => true,
                (Some(owners), Some(owner)) => owners.contains(owner),
                (Some(_), None) => false,
            };
            let its = self.wanted.subjects(hit.key).iter();
            let mut used =
                its.filter_map(|it| subjects.get(*it as usize)).filter(is_used).peekable();
            if used.peek().is_none() {
                continue;
            }
            let place = self.code.frame_at(self.reader, iseq, hit.position, owner.as_deref());
            for subject in used {
                all.entry(&subject.name).or_default().extend(place.clone());
            }
        }
        let all = all.into_iter().filter(|(_, places)| !places.is_empty());
        all.map(|(root, mut places)| {
            places.sort_unstable_by(|a, b| {
                (&a.path, a.line, &a.label).cmp(&(&b.path, b.line, &b.label))
            });
            places.dedup();
            RootUses { root: root.to_owned(), places }
        })
        .collect()
    }

    /// The owner of the method that this code is a part of; `None` for the body of a class or a file.
    fn owner(&mut self, iseq: Address, body_at: Address) -> Option<String> {
        let entry = self.method_of(iseq, body_at)?;
        let methods = self.code.methods();
        let number = methods.number(self.reader, entry)?;
        methods.get(number)?.owner.clone()
    }

    /// The entry of the method that this code is a part of.
    fn method_of(&self, iseq: Address, body_at: Address) -> Option<Address> {
        if let Some(entry) = self.methods.get(&iseq) {
            return Some(*entry);
        }
        // The code of a block refers to that of its method (`local_iseq` of `rb_iseq_constant_body`), and to that around it.
        let mut body = [0; BODY_BYTES];
        let read = self.reader.image.read(body_at, &mut body);
        let around = words(&body[..read]).filter_map(|it| self.methods.get(&Address(it)));
        let mut around: Vec<Address> = around.copied().collect();
        around.dedup();
        around.first().copied().filter(|_| around.len() == 1)
    }
}
