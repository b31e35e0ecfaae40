job "service-check-http" {
  group "g" {
    network {
      port "http" {
      }
    }
    service {
      name = "s"
      port = "http"
      check {
        name = "c"
        type = "http"
        path = "/health"
        protocol = "https"
        port = "http"
        method = "POST"
        body = "{}"
        interval = "10s"
        timeout = "2s"
        initial_status = "passing"
        notes = "notes"
        tls_server_name = "x"
        tls_skip_verify = true
        address_mode = "host"
        on_update = "ignore_warnings"
        success_before_passing = 1
        failures_before_critical = 2
        failures_before_warning = 1
        header {
          Authorization = ["Basic x"]
          X = ["1", "2"]
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
