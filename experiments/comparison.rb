# frozen_string_literal: true

require "json"

# A comparison of a program under several settings, made by `rbloat compare`. Its results are kept in a folder.
class Comparison
  # The parent of the folders of all comparisons.
  FOLDER = File.join(ROOT, "target/experiments")
  PICTURES = File.join(ROOT, "docs/experiments")
  MIB = 1_048_576.0

  attr_reader :name

  # +before+: the words of a command that runs the comparison, such as one that starts a server for it. +environment+:
  # the variables that all settings have, or a lambda that returns them.
  def initialize(name, command, before: [], options: [], environment: {})
    @name = name
    @command = command
    @before = before
    @options = options
    @environment = environment
  end

  def environment
    @made ||= @environment.respond_to?(:call) ? @environment.call : @environment
  end

  def folder
    File.join(FOLDER, name)
  end

  def run(runs)
    arguments = [*@before, RBLOAT, "compare", "--gem", "#{ROOT}/gem", "--runs", runs.to_s, *@options, "-o", folder, "--",
                 *@command]
    system(environment, *arguments, chdir: ROOT, out: File::NULL, exception: true)
  end

  def done?
    File.exist?("#{folder}/comparison.json")
  end

  # The JSON document of `rbloat compare`.
  def found
    @found ||= JSON.parse(File.read("#{folder}/comparison.json"))
  end

  def medians
    found.fetch("medians")
  end

  # The command as a user types it in the repository.
  def command
    words = [*@before, "rbloat", "compare", "--gem", "gem", "--runs", medians.map { |it| it["runs"] }.max.to_s, *@options,
             "--", *@command]
    variables = @environment.is_a?(Hash) ? @environment.map { |variable, value| "#{variable}=#{value} " }.join : ""
    quoted = words.map { |word| word.match?(%r{\A[\w@%+=:,./-]+\z}) ? word : "'#{word}'" }
    variables + quoted.join(" ").gsub("#{ROOT}/", "").gsub(ROOT, ".")
  end

  # Copies the picture of all runs beside the page, and returns its path there.
  def picture
    require "fileutils"
    FileUtils.mkdir_p(PICTURES)
    FileUtils.cp("#{folder}/comparison.svg", "#{PICTURES}/#{name}.svg")
    "experiments/#{name}.svg"
  end

  # A median of a setting in +unit+, with its difference from the baseline if that is more than noise.
  def cell(median, figure, unit, digits = 0)
    spread = median[figure] or return ""
    percent = spread["differs_percent"]
    text = format("%.#{digits}f", spread["median"] / unit)
    percent ? "#{text} (#{format('%+.0f', percent)} %)" : text
  end

  def summary
    found.fetch("summary")
  end
end

# A section of the page that consists of comparisons, by name.
class Comparisons
  def initialize(runs, comparisons)
    @runs = runs
    @comparisons = comparisons
  end

  def run
    system("rake", "compile", chdir: "#{ROOT}/gem", out: File::NULL, exception: true)
    @comparisons.each_value { |comparison| comparison.run(@runs) }
  end

  def done?
    @comparisons.each_value.all?(&:done?)
  end
end
