use std::ops::Range;

use image::elf::{self, Module};
use image::{Image, Memory};
use linux::{Address, one_line};

use crate::error::Error;
use crate::word::words;

/// Longer than any version string.
const MAX_VERSION: usize = 32;
/// More bytes of variables than an interpreter has.
const MAX_VARIABLES: u64 = 16 << 20;

/// Classes and modules that every Ruby exports, and their names. They belong to the interface for C
/// extensions, so even a stripped interpreter keeps them.
const LANDMARKS: [(&str, &str); 10] = [
    ("rb_cObject", "Object"),
    ("rb_cModule", "Module"),
    ("rb_cClass", "Class"),
    ("rb_cString", "String"),
    ("rb_cArray", "Array"),
    ("rb_cHash", "Hash"),
    ("rb_mKernel", "Kernel"),
    ("rb_cInteger", "Integer"),
    ("rb_cProc", "Proc"),
    ("rb_eStandardError", "StandardError"),
];
/// The variables of C code behind these global variables, which have no value of their own from 3.0 on.
const STREAMS: [(&str, &str); 3] =
    [("rb_stdin", "$stdin"), ("rb_stdout", "$stdout"), ("rb_stderr", "$stderr")];

/// The Ruby interpreter of a process: libruby, or an executable that is linked with it statically.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interpreter {
    /// The file name of its module.
    pub module: String,
    /// Its `RUBY_VERSION`: `3.1.2`.
    pub version: String,
    /// Where its module is in memory.
    pub range: Range<Address>,
    /// The memory of its module's variables.
    pub(crate) variables: Vec<Range<Address>>,
    /// The variable that holds the class Object.
    object_variable: Address,
    /// The variable that holds the address of the VM; exported up to 3.2.
    vm_variable: Option<Address>,
    /// The variables that hold well-known classes, with the names of these.
    landmark_variables: Vec<(Address, &'static str)>,
    /// The variables that hold the standard streams, with the names that programs use.
    pub(crate) stream_variables: Vec<(Address, &'static str)>,
    /// The function that reads global variables whose value a C variable holds.
    pub(crate) global_getter: Option<Address>,
}

/// A class that every Ruby has, at the address of its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Landmark {
    pub(crate) class: Address,
    pub(crate) name: &'static str,
}

/// Finds the Ruby interpreter of a process.
///
/// This reads only ELF tables, which do not change: the process need not be stopped.
#[must_use]
pub fn find(image: &Image<'_>) -> Option<Interpreter> {
    find_in(image, &elf::modules(image))
}

/// Finds the Ruby interpreter among the modules of a process, for callers that have read them
/// already.
#[must_use]
pub fn find_in(image: &Image<'_>, modules: &[Module]) -> Option<Interpreter> {
    let mut found = modules.iter().filter_map(|module| {
        let object = address_of(image, module, "rb_cObject")?;
        Some((module, object))
    });
    // An executable that takes a copy of libruby's variable exports it too. Then the copy is in use,
    // and the original stays zero.
    let first = found.next()?;
    let in_use = |&(_, object): &(&Module, Address)| image.read_u64(object).is_ok_and(|it| it != 0);
    let (module, object_variable) =
        if in_use(&first) { first } else { found.find(in_use).unwrap_or(first) };
    let home = modules.iter().find_map(|module| {
        let version = image.read_c_string(address_of(image, module, "ruby_version")?, MAX_VERSION);
        Some((module, one_line(&String::from_utf8(version.ok()?).ok()?)))
    });
    let (home, version) = home.unwrap_or((module, "of an unknown version".to_owned()));
    let of_symbols = |symbols: &[(&'static str, &'static str)]| {
        let find = |&(symbol, name): &(&str, &'static str)| {
            let here = address_of(image, module, symbol);
            Some((here.or_else(|| address_of(image, home, symbol))?, name))
        };
        symbols.iter().filter_map(find).collect()
    };
    Some(Interpreter {
        module: home.name.clone(),
        version,
        range: home.range.clone(),
        variables: home.variables.clone(),
        object_variable,
        vm_variable: address_of(image, home, "ruby_current_vm_ptr"),
        landmark_variables: of_symbols(&LANDMARKS),
        stream_variables: of_symbols(&STREAMS),
        global_getter: address_of(image, home, "rb_gvar_var_getter"),
    })
}

fn address_of(image: &Image<'_>, module: &Module, symbol: &str) -> Option<Address> {
    Some(module.symbol(image, symbol).ok()??.address)
}

impl Interpreter {
    #[cfg(test)]
    pub(crate) fn for_tests(version: &str, range: Range<Address>) -> Self {
        Self { module: "libruby.so".into(), version: version.into(), range, ..Self::default() }
    }

    /// Its module among `modules`, the modules of the process.
    #[must_use]
    pub fn module_among<'m>(&self, modules: &'m [Module]) -> Option<&'m Module> {
        modules.iter().find(|module| module.range == self.range)
    }

    /// The variable that holds the class Object, and its value: another program has neither in the same place.
    pub(crate) fn anchor(&self, image: &Image<'_>) -> Option<(Address, Address)> {
        let object =
            image.read_address(self.object_variable).ok().filter(|object| object.0 != 0)?;
        Some((self.object_variable, object))
    }

    /// The slot of the class Object, from which every derivation starts.
    pub(crate) fn object_class(&self, image: &Image<'_>) -> Result<Address, Error> {
        let at = self.object_variable;
        match image.read_address(at) {
            Ok(class) if class.0 != 0 => Ok(class),
            _ => Err(Error::NotStarted { version: self.version.clone(), at }),
        }
    }

    /// The VM (`rb_vm_t`), if its address is exported.
    pub(crate) fn vm(&self, image: &Image<'_>) -> Option<Address> {
        image.read_address(self.vm_variable?).ok().filter(|vm| vm.0 != 0)
    }

    /// The classes that every Ruby has; fewer while it is starting.
    pub(crate) fn landmarks(&self, image: &Image<'_>) -> Vec<Landmark> {
        let read = |&(at, name): &(Address, &'static str)| {
            let class = image.read_address(at).ok().filter(|class| class.0 != 0)?;
            Some(Landmark { class, name })
        };
        self.landmark_variables.iter().filter_map(read).collect()
    }

    /// The words of its variables: each part of its module with the address of its first word.
    pub(crate) fn variables(&self, image: &Image<'_>) -> impl Iterator<Item = (Address, Vec<u64>)> {
        self.variables.iter().map(|range| {
            let mut bytes = vec![0; linux::length(range).min(MAX_VARIABLES) as usize];
            let read = image.read(range.start, &mut bytes);
            (range.start, words(&bytes[..read]).collect())
        })
    }

    /// Returns true if a variable of its module is at this address.
    pub(crate) fn is_variable(&self, at: Address) -> bool {
        self.variables.iter().any(|range| range.contains(&at))
    }

    /// The words of its variables with their addresses.
    pub(crate) fn variable_words(&self, image: &Image<'_>) -> impl Iterator<Item = (Address, u64)> {
        self.variables(image).flat_map(|(start, words)| {
            (0..).zip(words).map(move |(number, word)| (start.offset(number * 8), word))
        })
    }

    /// Refuses an interpreter whose heap belongs to another garbage collector than the default one.
    ///
    /// Modular garbage collectors are libraries named `librubygc.NAME.so` (gc.c,
    /// `ruby_external_gc_init`; from 3.4 on).
    pub(crate) fn check_collector(&self, image: &Image<'_>) -> Result<(), Error> {
        let collectors = image.state.mappings.iter().filter_map(|mapping| {
            let name = mapping.file_name()?;
            Some(name.strip_prefix("librubygc.")?.strip_suffix(".so")?.to_owned())
        });
        for collector in collectors {
            if collector != "default" {
                return Err(Error::OtherCollector { version: self.version.clone(), collector });
            }
        }
        Ok(())
    }
}
