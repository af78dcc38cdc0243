# frozen_string_literal: true

require "json"

# What `rbloat compare` makes of a program under several settings: run, kept in a folder, shown as a table.
class Comparison
  # Where the runs are kept, each in a folder of its own.
  FOLDER = File.join(ROOT, "target/experiments")
  PICTURES = File.join(ROOT, "docs/experiments")
  MB = 1_048_576.0

  attr_reader :name

  # +before+: the words of a command that runs others, such as one that starts a server for them. +environment+: what
  # all settings have in common, or what makes that when it is needed.
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

  # What `rbloat compare` said.
  def found
    @found ||= JSON.parse(File.read("#{folder}/comparison.json"))
  end

  def medians
    found.fetch("medians")
  end

  # As a user types it in the repository.
  def command
    words = [*@before, "rbloat", "compare", "--gem", "gem", "--runs", medians.map { |it| it["runs"] }.max.to_s, *@options,
             "--", *@command]
    variables = @environment.is_a?(Hash) ? @environment.map { |variable, value| "#{variable}=#{value} " }.join : ""
    quoted = words.map { |word| word.match?(%r{\A[\w@%+=:,./-]+\z}) ? word : "'#{word}'" }
    variables + quoted.join(" ").gsub("#{ROOT}/", "").gsub(ROOT, ".")
  end

  # The picture of all runs, where the page finds it.
  def picture
    require "fileutils"
    FileUtils.mkdir_p(PICTURES)
    FileUtils.cp("#{folder}/comparison.svg", "#{PICTURES}/#{name}.svg")
    "experiments/#{name}.svg"
  end

  # A figure of a setting, in a unit, marked where it differs from the first setting's in every run.
  def cell(median, figure, unit, digits = 0)
    spread = median[figure] or return ""
    percent = spread["differs_percent"]
    text = format("%.#{digits}f", spread["median"] / unit)
    percent ? "#{text} (#{format('%+.0f', percent)} %)" : text
  end

  def summary
    recommendation = found.fetch("recommendation")
    "#{recommendation['summary']} Confidence #{recommendation['confidence']}."
  end
end

# A part of the page that is made of comparisons, by name.
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
