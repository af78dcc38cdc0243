-- A load of a given rate on the shop, for wrk with one connection for each thread. The first threads are offices, which export a month.
-- The others are visitors. Each waits before each request, for a random time.
--   wrk -t10 -c10 -d60s --timeout 60s --latency -s scenarios/rails/paced.lua URL -- OFFICES OFFICE_MS VISITOR_MS SEED
-- OFFICE_MS and VISITOR_MS are the mean waits. No connection is used again, so each request may reach another worker.

local threads = 0

function setup(thread)
    thread:set("number", threads)
    threads = threads + 1
end

function init(arguments)
    offices = tonumber(arguments[1])
    office_ms = tonumber(arguments[2])
    visitor_ms = tonumber(arguments[3])
    math.randomseed(tonumber(arguments[4]) * 1000 + number)
    wrk.headers["Connection"] = "close"
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
    if number < offices then
        return wrk.format("GET", "/exports/" .. math.random(10, 12) .. ".csv")
    end
    return wrk.format("GET", visit())
end

-- The times between the requests of a Poisson process.
function delay()
    local mean = number < offices and office_ms or visitor_ms
    return math.floor(-mean * math.log(1 - math.random()))
end
