//! Classes: their slots, their names and their singleton classes.

use super::release::NamePlace;
use super::{RubyHeap, T_CLASS, Word, shapes};

impl RubyHeap {
    /// Removes the superclass of the singleton class of a class, as while Ruby makes it.
    ///
    /// # Panics
    /// If there is no such class.
    pub fn unmake_singleton(&mut self, class: u64) {
        const UNDEFINED: u64 = 0x34;
        let own = self.objects[&class].class;
        self.set_word(own, self.layout.superclass, Word::Value(UNDEFINED));
    }

    /// Adds a class without a name and without a class of its own.
    pub(super) fn bare_class(&mut self, kind: u8, superclass: u64) -> u64 {
        let mut words = vec![Word::Value(0); self.layout.class_bytes as usize / 8 - 2];
        words[self.layout.superclass as usize / 8 - 2] = Word::Value(superclass);
        self.put(kind, 0, 0, words)
    }

    /// Gives a class the singleton class that every class has.
    pub(super) fn give_class_its_own(&mut self, class: u64) {
        let superclass = self.well_known("rb_cClass");
        let own = self.bare_class(T_CLASS, superclass);
        let singleton = self.objects.get_mut(&own).expect("it was made above");
        singleton.flags |= self.layout.singleton_flag;
        singleton.class = own;
        self.singletons.insert(own, superclass);
        self.objects.get_mut(&class).expect("the class exists").class = own;
    }

    pub(super) fn name(&mut self, class: u64, name: &str) {
        let string = self.string(name);
        self.names.insert(class, name.to_owned());
        self.name_strings.insert(class, string);
        match self.layout.name {
            NamePlace::Slot(at) => self.set_word(class, at, Word::Value(string)),
            NamePlace::Variable => {
                let variables = self.malloc(32);
                let own = self.objects.get_mut(&class).expect("the object exists");
                let has_members = own.flags >> 32 == shapes::MEMBERS;
                own.flags &= u64::from(u32::MAX);
                let (shape, place) =
                    if has_members { (shapes::NAMED_MEMBERS, 8) } else { (shapes::NAMED, 0) };
                own.flags |= shape << 32;
                self.memory.push((variables + place, string.to_le_bytes().to_vec()));
                self.set_word(class, 32, Word::Pointer(variables));
            }
            NamePlace::Table => {
                let (extension, table, entries) =
                    (self.malloc(104), self.malloc(56), self.malloc(96));
                let write = |words: &[u64]| words.iter().flat_map(|it| it.to_le_bytes()).collect();
                self.memory.push((extension, write(&[0, table])));
                self.memory.push((table, write(&[0x0002, 0x7f10_0000_0000, 2, 0, 0, 2, entries])));
                self.memory.push((entries, write(&[1, 0x1331, 0x15, 2, 0x0bf1, string])));
                self.set_word(class, 24, Word::Pointer(extension));
            }
        }
    }

    /// Adds a class with a name.
    pub fn class(&mut self, name: &str, superclass: u64) -> u64 {
        let class = self.anonymous_class(superclass);
        self.name(class, name);
        class
    }

    /// Adds a class without a name.
    pub fn anonymous_class(&mut self, superclass: u64) -> u64 {
        let class = self.bare_class(T_CLASS, superclass);
        self.give_class_its_own(class);
        class
    }

    /// Adds a class that has an instance variable before it gets its name, like the classes that Struct makes.
    pub fn class_named_late(&mut self, name: &str, superclass: u64) -> u64 {
        let class = self.anonymous_class(superclass);
        if self.layout.name == NamePlace::Variable {
            let class = self.objects.get_mut(&class).expect("it was made above");
            class.flags |= shapes::MEMBERS << 32;
        }
        self.name(class, name);
        class
    }

    /// Gives an object a singleton class.
    ///
    /// # Panics
    /// If there is no such object.
    pub fn extend(&mut self, object: u64) {
        let class = self.objects[&object].class;
        let own = self.bare_class(T_CLASS, class);
        let class_of_own = self.well_known("rb_cClass");
        let singleton = self.objects.get_mut(&own).expect("it was made above");
        singleton.flags |= self.layout.singleton_flag;
        singleton.class = class_of_own;
        self.singletons.insert(own, class);
        self.objects.get_mut(&object).expect("the object exists").class = own;
    }

    /// Returns true if an object has a class, and no singleton class.
    #[must_use]
    pub fn is_of_own_class(&self, object: u64) -> bool {
        // The word of an internal object in the place of the class refers to no class.
        let object = self.objects.get(&object).filter(|it| it.kind != super::T_IMEMO);
        let class = object.map_or(0, |it| it.class);
        class != 0 && !self.singletons.contains_key(&class)
    }
}
