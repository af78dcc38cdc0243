# frozen_string_literal: true

# For scripts/gem-dist: installs each gem of this folder for this Ruby, and uses it as applications do.

require "fileutils"
require "rbconfig"
require "rubygems/package"
require "tmpdir"

# One gem, installed into a folder of its own.
class Installed
  APPLICATION = {
    "Gemfile" => %w[railties spring rbloat].map { |name| "gem #{name.inspect}\n" }.join,
    "bin/rails" => "APP_PATH = File.expand_path('../config/application', __dir__)\nrequire 'rails/commands'\n",
    "config/environment.rb" => "require_relative 'application'\nRails.application.initialize!\n",
    "config/application.rb" => <<~RUBY
      require "logger"
      require "rails"
      require "rbloat"
      class Application < Rails::Application
        config.eager_load = false
        config.cache_classes = false # Spring 4 needs it
        config.logger = Logger.new(IO::NULL)
        config.secret_key_base = "x" * 32
      end
    RUBY
  }.freeze
  BOOTSNAP = <<~RUBY
    gem "rbloat" # as Bundler does: Bootsnap only looks into the load path
    require "bootsnap"
    # Only the caches that need no other gem.
    unused = %i[autoload_paths_cache compile_cache_yaml compile_cache_json] & Bootsnap.method(:setup).parameters.map(&:last)
    Bootsnap.setup(cache_dir: ARGV[0], development_mode: false, load_path_cache: true, compile_cache_iseq: true,
                   **unused.to_h { |name| [name, false] })
    require "rbloat"
    Rbloat.start
    puts [$LOADED_FEATURES.grep(%r{rbloat/rbloat\\.so|rbloat/\\d\\.\\d/rbloat\\.so}).size, Rbloat::AutoTrim.running?].inspect
  RUBY

  # Spring 2 cannot load Rails 7.
  USABLE_SPRING = <<~RUBY
    require "rails"
    gem "spring"
    exit Rails::VERSION::MAJOR < 7 || Gem.loaded_specs["spring"].version >= Gem::Version.new("3")
  RUBY

  def initialize(file, folder)
    @file = file
    @folder = folder
    @spec = Gem::Package.new(file).spec
    @environment = { "GEM_HOME" => "#{folder}/gems", "PATH" => "#{folder}/gems/bin:#{ENV.fetch('PATH')}",
                     "RUBYOPT" => nil, "RUBYLIB" => nil }
    @checks = []
  end

  def platform?
    @spec.platform != Gem::Platform::RUBY
  end

  # Returns the names of what was checked.
  def check
    # If there were another gem in the working directory, it could be installed instead.
    FileUtils.cp(@file, @folder)
    install = ["-S", "gem", "install", "--local", "--no-document", File.basename(@file)]
    unless @spec.required_ruby_version.satisfied_by?(Gem.ruby_version)
      expect(/requires Ruby version/, *install, fails: true, chdir: @folder)
      return ["refused"]
    end
    return check_unpacked unless @spec.required_rubygems_version.satisfied_by?(Gem.rubygems_version)

    expect(/1 gem installed/, *install, chdir: @folder)
    return check_results if @spec.name == "rbloat-results"

    check_library
    check_program if platform?
    check_bootsnap
    check_spring
    @checks
  end

  private

  # Runs Ruby, and compares its output. That is a file, since Spring's server would keep a pipe open.
  def expect(pattern, *arguments, env: {}, fails: false, **options)
    log = "#{@folder}/log"
    succeeds = system(@environment.merge(env), RbConfig.ruby, *arguments, out: log, err: %i[child out], **options)
    output = File.read(log)
    return if pattern.match?(output) && succeeds != fails

    abort "installed: #{File.basename(@file)}: no #{pattern.inspect} from ruby #{arguments.join(' ')}\n#{output}"
  end

  # An old RubyGems cannot install the gem, but this Ruby can use it.
  def check_unpacked
    Gem::Package.new(@file).extract_files("#{@folder}/unpacked")
    expect(%r{unpacked/lib/rbloat/\d\.\d/rbloat\.so [1-9]\d{6}}, "-I", "#{@folder}/unpacked/lib", "-e", <<~RUBY)
      require "rbloat"
      puts "\#{$LOADED_FEATURES.grep(/rbloat\\.so/).first} \#{Rbloat.stats[:rss_bytes]}"
    RUBY
    ["not for RubyGems #{Gem::VERSION}", "unpacked"]
  end

  def check_results
    expect(/\A\[\["1"\]\]/, "-e", <<~'RUBY')
      require "rbloat/results"
      cells = Rbloat::Cells.new
      cells.send(:native_columns, ["a"], ["UTF-8"], [0], nil)
      cells.send(:native_rows, [["1"]])
      p cells.values
    RUBY
    ["library"]
  end

  def check_library
    expect(/rss_bytes(=>|: )[1-9]\d{6}/, "-e", "require 'rbloat'; p Rbloat.stats")
    expect(/\A#{Regexp.escape(@spec.platform.to_s)} #{platform? ? '' : 'rbloat/rbloat.so'}/, "-e", <<~RUBY)
      require "rbloat"
      print Gem.loaded_specs["rbloat"].platform, " ", $LOADED_FEATURES.grep(/rbloat\\.so/).first[%r{rbloat/rbloat.so}]
    RUBY
    expect(/\Atrue/, "-e", "p Rbloat::AutoTrim.running?", env: { "RUBYOPT" => "-rrbloat", "RBLOAT_AUTO_TRIM" => "1" })
    # mallinfo2, which was not there when the platform gem was compiled.
    expect(/\Atrue/, "-e", <<~'RUBY')
      require "rbloat"
      string = String.new(capacity: 5 << 30)
      p Rbloat.malloc_stats[:in_use_bytes] > 5 << 30 || `ldd --version`[/ (\d+\.\d+)$/, 1].to_f < 2.33
    RUBY
    @checks << "library"
  end

  def check_program
    expect(/\Arbloat \d/, "-S", "rbloat", "--version")
    expect(/\Atrue/, "-e", "require 'rbloat'; p Rbloat.report[:process][:pid] == Process.pid")
    expect(/\A4$/, "-e", <<~'RUBY')
      file = File.join(Gem::Specification.find_by_name("rbloat").gem_dir, "THIRD-PARTY-LICENSES")
      p File.read(file, encoding: "UTF-8").scan(/^- (DejaVu Sans|glibc|object \d|the Rust standard library)/).size
    RUBY
    @checks << "program"
  end

  # Debian compiles gems for the default Ruby of a release only.
  def runs?(code)
    system(RbConfig.ruby, "-e", code, err: File::NULL)
  end

  # With an empty cache and with a full one.
  def check_bootsnap
    return unless runs?("require 'bootsnap'; require 'bootsnap/compile_cache/iseq'")

    2.times { expect(/\[1, true\]/, "-e", BOOTSNAP, "#{@folder}/cache") }
    @checks << "bootsnap"
  end

  # The application is preloaded, and each command is a forked process.
  def check_spring
    return unless runs?(USABLE_SPRING)

    APPLICATION.each do |path, content|
      FileUtils.mkdir_p(File.dirname("#{@folder}/application/#{path}"))
      File.write("#{@folder}/application/#{path}", content)
    end
    options = { chdir: "#{@folder}/application",
                env: { "SPRING_TMP_PATH" => @folder, "SPRING_SERVER_COMMAND" => nil } }
    spring = %w[-S spring]
    2.times do
      expect(/^true$/, *spring, "rails", "runner", "p Rbloat::AutoTrim.running? && Process.ppid != 1", **options)
    end
    @checks << "spring"
  ensure
    expect(/Spring/, *spring, "stop", **options) if options
  end
end

Dir["#{__dir__}/*.gem"].sort.each do |file|
  Dir.mktmpdir do |folder|
    checks = Installed.new(file, folder).check
    puts "Ruby #{RUBY_VERSION}, #{File.basename(file)}: #{checks.join(', ')}"
  end
end
