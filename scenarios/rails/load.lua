-- A load on the shop, for wrk -t9 -c9. The first thread is the office, which exports the last months of the year. The
-- others are visitors. Each run makes the same requests in the same order.
--   wrk -t9 -c9 -d60s --timeout 60s --latency -s scenarios/rails/load.lua http://127.0.0.1:9292 [-- MILLISECONDS]
-- MILLISECONDS is the time that the office waits before each export (1000).

local threads = 0

function setup(thread)
    thread:set("number", threads)
    threads = threads + 1
end

function init(arguments)
    pause = tonumber(arguments[1]) or 1000
    math.randomseed(2025 + number)
end

local function visit()
    local kind = math.random(100)
    if kind <= 45 then
        return "/orders?page=" .. math.random(1600)
    elseif kind <= 85 then
        return "/orders/" .. math.random(40000)
    end
    return "/orders.json?page=" .. math.random(1600)
end

function request()
    if number == 0 then
        return wrk.format("GET", "/exports/" .. math.random(10, 12) .. ".csv")
    end
    return wrk.format("GET", visit())
end

function delay()
    return number == 0 and pause or 0
end
