# frozen_string_literal: true

# Certificates of peers, as a client keeps them. Ruby counts only their slots.

require "openssl"
require_relative "../lib/owners"

TOTAL = 8_000

def certificate
  key = OpenSSL::PKey::RSA.new(2048)
  certificate = OpenSSL::X509::Certificate.new
  certificate.version = 2
  certificate.serial = 1
  certificate.subject = certificate.issuer = OpenSSL::X509::Name.parse("/C=NL/O=Example/CN=shop.example")
  certificate.public_key = key.public_key
  certificate.not_before = Time.at(0)
  certificate.not_after = Time.at(2_000_000_000)
  certificate.sign(key, OpenSSL::Digest.new("SHA256"))
end

Owners.run do |scale|
  der = certificate.to_der
  Owners.keep(TOTAL * scale) { OpenSSL::X509::Certificate.new(der) }
end
