job "service-connect-native" {
  group "g" {
    service {
      name = "s"
      port = "9001"
      task = "t"
      connect {
        native = true
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
