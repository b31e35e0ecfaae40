job "group-secret" {
  group "g" {
    secret "x" {
      provider = "nomad"
      path = "nomad/jobs/x"
      config {
        namespace = "default"
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
