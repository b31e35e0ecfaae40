job "service-check-grpc" {
  group "g" {
    network {
      port "grpc" {
      }
    }
    service {
      name = "s"
      port = "grpc"
      check {
        type = "grpc"
        grpc_service = "svc"
        grpc_use_tls = true
        interval = "10s"
        timeout = "2s"
      }
      check {
        type = "tcp"
        interval = "10s"
        timeout = "2s"
        advertise = "x"
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
