job "language-dynamic" {
  group "g" {
    network {
      dynamic "port" {
        for_each = { http = 24720, dyn = 0 }
        labels = [port.key]
        content {
          static = port.value
        }
      }
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
      dynamic "template" {
        for_each = ["x", "y"]
        iterator = file
        content {
          data = file.value
          destination = "local/${file.value}"
        }
      }
    }
  }
}
