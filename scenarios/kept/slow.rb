# frozen_string_literal: true

# A server with four endpoints that makes much garbage. Only Audit#note keeps what it makes: about 60 objects in every third request.

require_relative "load"

class Catalog
  def index
    Array.new(3000) { |i| "item #{i} " * 4 }.join.size
  end
end

class Search
  def query
    (1..4000).map { |i| { id: i, name: "n#{i}" } }.sum { |it| it[:id] }
  end
end

class Render
  def page
    text = +""
    2000.times { |i| text << "<li>#{i}</li>" }
    text.size
  end
end

class Audit
  LOG = []

  def note(number)
    rows = Array.new(20) { |i| { at: number, who: "user #{i}", what: "looked at page #{number} " * 5 } }
    LOG << rows
  end
end

Load.run(threads: 4) do |number|
  Catalog.new.index
  Search.new.query
  Render.new.page
  Audit.new.note(number) if (number % 3).zero?
  sleep 0.01
end
