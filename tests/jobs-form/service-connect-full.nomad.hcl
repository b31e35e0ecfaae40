job "service-connect-full" {
  group "g" {
    volume "v" {
      type = "host"
      source = "s"
    }
    network {
      mode = "bridge"
      port "health" {
        to = -1
      }
    }
    service {
      name = "s"
      port = "9001"
      connect {
        sidecar_service {
          tags = ["x"]
          port = "health"
          disable_default_tcp_check = true
          meta {
            a = "b"
          }
          proxy {
            local_service_address = "127.0.0.1"
            local_service_port = 9001
            config {
              a = 1
              b {
                c = 2
              }
            }
            expose {
              path {
                path = "/health"
                protocol = "http"
                local_path_port = 9001
                listener_port = "health"
              }
            }
            upstreams {
              destination_name = "up"
              destination_namespace = "n"
              destination_peer = "peer"
              destination_partition = "part"
              destination_type = "service"
              local_bind_port = 8181
              datacenter = "dc1"
              local_bind_address = "127.0.0.1"
              local_bind_socket_path = "/tmp/s"
              local_bind_socket_mode = "0600"
              mesh_gateway {
                mode = "local"
              }
              config {
                x = "y"
              }
            }
          }
        }
        sidecar_task {
          name = "side"
          driver = "docker"
          user = "nobody"
          kill_timeout = "10s"
          kill_signal = "SIGTERM"
          shutdown_delay = "3s"
          config {
            image = "envoy"
          }
          env {
            A = "b"
          }
          meta {
            c = "d"
          }
          identity {
            name = "x"
            aud = ["y"]
          }
          resources {
            cpu = 50
            memory = 64
          }
          logs {
            max_files = 2
          }
          volume_mount {
            volume = "v"
            destination = "/v"
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
