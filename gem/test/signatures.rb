# frozen_string_literal: true

# For `rake types`: compares the public methods of the gem with the signatures, and calls them while RBS checks the
# types of arguments and results.

require "rbloat"
require "rbloat/results"
require "rbloat/statsd"
require "rbs"

SIGNATURES = RBS::EnvironmentLoader.new.tap { |loader| loader.add(path: Pathname(File.expand_path("../sig", __dir__))) }
BUILDER = RBS::DefinitionBuilder.new(env: RBS::Environment.from_loader(SIGNATURES).resolve_type_names)

# The methods that each structure, and each object, has.
GENERATED = [*Struct.new(:a, keyword_init: true).singleton_methods, *Object.public_instance_methods].freeze

# The methods that a class or module defines itself, in Ruby but not in its signature or the other way round.
def differences(owner)
  names = owner.name.split("::").map(&:to_sym)
  name = RBS::TypeName.new(name: names.pop, namespace: RBS::Namespace.new(path: names, absolute: true))
  { owner => BUILDER.build_instance(name), owner.singleton_class => BUILDER.build_singleton(name) }
    .flat_map do |container, definition|
      declared = definition.methods.select { |_method, type| type.implemented_in == name && type.public? }.keys
      defined = defined_in(container, owner)
      (defined - declared).map { |method| "#{container}: no signature of #{method}" } +
        (declared - defined - GENERATED - %i[initialize new]).map { |method| "#{container}: no method #{method}" }
    end
end

# RBS adds methods itself, and structures have setters.
def defined_in(container, owner)
  setters = owner < Struct ? owner.members.map { |member| :"#{member}=" } : []
  container.public_instance_methods(false).grep_v(/__with(out)?__RBS/) - GENERATED - setters
end

def public_modules(owner)
  inner = owner.constants(false).map { |name| owner.const_get(name) }.grep(Module)
  [owner, *inner.flat_map { |container| public_modules(container) }]
end

found = public_modules(Rbloat).flat_map { |owner| differences(owner) }
abort found.join("\n") unless found.empty?

Rbloat.configure do |config|
  config.profile = :job
  config.share = 1 / 50r
  config.pressure = 1
end
Rbloat.start
Rbloat::AutoTrim.quiet!
Rbloat.probe { "x" * 100_000 }.then { |probe| [probe.verdict, probe.seen, probe.freed, probe.unseen_bytes] }
Rbloat.trim
Rbloat.stats
Rbloat.malloc_stats
Rbloat::NativePressure.stats
Rbloat.allow_attach(:none)
Rbloat::RequestLog.new(->(_env) { [200, {}, []] }).call({})
client = Object.new
%i[gauge count].each { |method| client.define_singleton_method(method) { |_name, _value| nil } }
Rbloat::StatsdAdapter.new(client).update
Rbloat::Cgroup.find&.used_bytes
Rbloat.stop
