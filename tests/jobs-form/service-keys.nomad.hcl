job "service-keys" {
  group "g" {
    network {
      port "http" {
      }
    }
    service {
      name = "web"
      port = "http"
      tags = ["a", "b"]
      canary_tags = ["c"]
      enable_tag_override = true
      address_mode = "host"
      on_update = "ignore"
      provider = "consul"
      cluster = "default"
      kind = "api-gateway"
      meta {
        a = "b"
      }
      canary_meta {
        c = "d"
      }
      tagged_addresses {
        lan = "10.0.0.1"
      }
      weights {
        passing = 3
        warning = 2
      }
      identity {
        aud = ["consul.io"]
        ttl = "1h"
      }
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
