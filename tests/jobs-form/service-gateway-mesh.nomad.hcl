job "service-gateway-mesh" {
  group "g" {
    network {
      mode = "bridge"
    }
    service {
      name = "gw"
      port = "8080"
      connect {
        gateway {
          mesh {
          }
        }
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
