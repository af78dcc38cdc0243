use std::ops::Range;

use capture::elf::{self, Module};
use capture::{Address, Image, Memory};

use crate::Error;

/// More bytes than a version string has.
const LONGEST_VERSION: usize = 32;

/// Classes and modules that every Ruby exports, and their names. They are C's extension interface,
/// so even a stripped interpreter keeps them.
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

/// The Ruby interpreter of a process: libruby, or an executable that it is linked into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interpreter {
    /// The file name of its module.
    pub module: String,
    /// Its version, as `RUBY_VERSION` says: `3.1.2`.
    pub version: String,
    /// Where its module is in memory.
    pub(crate) range: Range<Address>,
    /// Its module's variables.
    pub(crate) variables: Vec<Range<Address>>,
    /// The variable that holds the class Object.
    object_variable: Address,
    /// The variable that holds the address of the VM; exported up to 3.2.
    vm_variable: Option<Address>,
    /// The other variables that hold well-known classes, with the names of those.
    landmark_variables: Vec<(Address, &'static str)>,
}

/// A class that every Ruby has, at the address of its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Landmark {
    pub(crate) class: Address,
    pub(crate) name: &'static str,
}

/// Finds the Ruby interpreter of a process.
///
/// Reads ELF tables only, which do not change: the process need not stand still for it.
#[must_use]
pub fn find(image: &Image<'_>) -> Option<Interpreter> {
    find_in(image, &elf::modules(image))
}

/// Finds the Ruby interpreter among the modules of a process, for callers that have read them already.
#[must_use]
pub fn find_in(image: &Image<'_>, modules: &[Module]) -> Option<Interpreter> {
    let mut found = modules.iter().filter_map(|module| {
        let object = address_of(image, module, "rb_cObject")?;
        Some((module, object))
    });
    // An executable that takes a copy of libruby's variable exports it too, and then that copy is
    // the one in use; the other stays zero.
    let first = found.next()?;
    let in_use = |&(_, object): &(&Module, Address)| image.read_u64(object).is_ok_and(|it| it != 0);
    let (module, object_variable) =
        if in_use(&first) { first } else { found.find(in_use).unwrap_or(first) };
    let home = modules.iter().find_map(|module| {
        let version =
            image.read_c_string(address_of(image, module, "ruby_version")?, LONGEST_VERSION);
        Some((module, String::from_utf8(version.ok()?).ok()?))
    });
    let (home, version) = home.unwrap_or((module, "of an unknown version".to_owned()));
    let landmark_variables = LANDMARKS
        .iter()
        .filter_map(|&(symbol, name)| {
            let here = address_of(image, module, symbol);
            Some((here.or_else(|| address_of(image, home, symbol))?, name))
        })
        .collect();
    Some(Interpreter {
        module: home.name.clone(),
        version,
        range: home.range.clone(),
        variables: home.variables.clone(),
        object_variable,
        vm_variable: address_of(image, home, "ruby_current_vm_ptr"),
        landmark_variables,
    })
}

fn address_of(image: &Image<'_>, module: &Module, symbol: &str) -> Option<Address> {
    Some(module.symbol(image, symbol).ok()??.address)
}

impl Interpreter {
    #[cfg(test)]
    pub(crate) fn for_tests(version: &str, range: Range<Address>) -> Self {
        Self {
            module: "libruby.so".into(),
            version: version.into(),
            range,
            variables: Vec::new(),
            object_variable: Address(0),
            vm_variable: None,
            landmark_variables: Vec::new(),
        }
    }

    /// Its module among those of the process.
    #[must_use]
    pub fn module_among<'m>(&self, modules: &'m [Module]) -> Option<&'m Module> {
        modules.iter().find(|module| module.range == self.range)
    }

    /// The slot of the class Object, with which every derivation begins.
    pub(crate) fn object_class(&self, image: &Image<'_>) -> Result<Address, Error> {
        let at = self.object_variable;
        match image.read_address(at) {
            Ok(class) if class.0 != 0 => Ok(class),
            _ => Err(Error::NotStarted { version: self.version.clone(), at }),
        }
    }

    /// The VM (`rb_vm_t`), where it can be told.
    pub(crate) fn vm(&self, image: &Image<'_>) -> Option<Address> {
        image.read_address(self.vm_variable?).ok().filter(|vm| vm.0 != 0)
    }

    /// The classes that every Ruby has; fewer where it is only starting.
    pub(crate) fn landmarks(&self, image: &Image<'_>) -> Vec<Landmark> {
        let read = |&(at, name): &(Address, &'static str)| {
            let class = image.read_address(at).ok().filter(|class| class.0 != 0)?;
            Some(Landmark { class, name })
        };
        self.landmark_variables.iter().filter_map(read).collect()
    }

    /// Whether it is at least of this release; a version that makes no sense counts as new.
    pub(crate) fn is_at_least(&self, major: u32, minor: u32) -> bool {
        let mut numbers = self.version.split('.').map_while(|part| part.parse::<u32>().ok());
        match (numbers.next(), numbers.next()) {
            (Some(own_major), Some(own_minor)) => (own_major, own_minor) >= (major, minor),
            _ => true,
        }
    }

    /// Refuses an interpreter whose heap another garbage collector than the default one made.
    ///
    /// Modular garbage collectors are libraries named `librubygc.NAME.so` (gc.c,
    /// `ruby_external_gc_init`; from 3.4 on).
    pub(crate) fn check_collector(&self, image: &Image<'_>) -> Result<(), Error> {
        let collectors = image.state.mappings.iter().filter_map(|mapping| {
            mapping.file_name()?.strip_prefix("librubygc.")?.strip_suffix(".so")
        });
        for collector in collectors {
            if collector != "default" {
                let collector = collector.to_owned();
                return Err(Error::OtherCollector { version: self.version.clone(), collector });
            }
        }
        Ok(())
    }
}
