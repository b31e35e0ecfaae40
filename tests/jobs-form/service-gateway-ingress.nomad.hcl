job "service-gateway-ingress" {
  group "g" {
    network {
      mode = "bridge"
    }
    service {
      name = "gw"
      port = "8080"
      connect {
        gateway {
          proxy {
            connect_timeout = "500ms"
            envoy_gateway_bind_tagged_addresses = true
            envoy_gateway_no_default_bind = true
            envoy_dns_discovery_type = "STRICT_DNS"
            envoy_gateway_bind_addresses "default" {
              address = "10.0.0.1"
              port = 8889
            }
            config {
              x = 1
            }
          }
          ingress {
            tls {
              enabled = true
              tls_min_version = "TLSv1_2"
              tls_max_version = "TLSv1_3"
              cipher_suites = ["A"]
              sds {
                cluster_name = "c"
                cert_resource = "r"
              }
            }
            listener {
              port = 8080
              protocol = "http"
              service {
                name = "web"
                hosts = ["a.example"]
                max_connections = 10
                max_pending_requests = 11
                max_concurrent_requests = 12
                tls {
                  sds {
                    cert_resource = "q"
                  }
                }
                request_headers {
                  add {
                    a = "b"
                  }
                  set {
                    c = "d"
                  }
                  remove = ["e"]
                }
                response_headers {
                  remove = ["f"]
                }
              }
            }
            listener {
              port = 9090
              service {
                name = "raw"
              }
            }
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
