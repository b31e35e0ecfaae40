job "group-migrate" {
  group "g" {
    migrate {
      max_parallel = 3
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
