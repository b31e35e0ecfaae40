job "group-max-run" {
  type = "batch"
  group "g" {
    max_run_duration = "30m"
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
