job "group-update" {
  group "g" {
    update {
      max_parallel = 2
      progress_deadline = "0s"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
